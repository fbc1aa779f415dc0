"""Checks of the states from which `LanguageModel.resume` continues: they come from files."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_args

from gpt2np.constraints import Constraint
from gpt2np.errors import InvalidArgumentError, is_integer, short_repr
from gpt2np.generation.options import GenerationOptions
from gpt2np.generation.sequence import FinishReason

_MAX_LAST_PIECES = 2  # pieces of text that the end of a stream can add


def _ids(name: str, state: Mapping[str, Any], vocab_size: int) -> Sequence[int]:
    """Check and return a list of token ids in a state."""
    ids: Sequence[int] = state[name]
    is_list = isinstance(ids, (list, tuple)) and all(map(is_integer, ids))
    _check(is_list, name, state, "a list of integers")
    if invalid := [token_id for token_id in ids if not 0 <= token_id < vocab_size]:
        raise InvalidArgumentError(
            f"{name} of the state: id {short_repr(invalid[0])} is not in the model's vocabulary of "
            f"{vocab_size}"
        )
    return ids


def check_state(
    state: Mapping[str, Any],
    options: GenerationOptions,
    eos_token_ids: Collection[int],
    n_positions: int,
    vocab_size: int,
) -> None:
    """Check that a state is one that a stream with these options can have.

    Raises:
        InvalidArgumentError: a value has the wrong type, or contradicts another value.
        KeyError: a value is missing.
    """
    prompt_ids, ids = (_ids(name, state, vocab_size) for name in ("prompt_ids", "ids"))
    _check(isinstance(state["prompt"], str), "prompt", state, "a text")
    n, reason = len(ids), state["finish_reason"]
    reasons = get_args(FinishReason)
    _check(reason is None or reason in reasons, "finish_reason", state, f"None or in {reasons}")
    n_left = options.max_new_tokens - n
    _check(n_left > 0 or (reason and n_left == 0), "ids", state, "shorter than max_new_tokens")
    ends = {*eos_token_ids, *options.stop_token_ids}
    n_running = n - 1 if reason else n
    _check(ends.isdisjoint(ids[:n_running]), "ids", state, "without an end before the last id")
    _check_logprobs("logprobs", state, ids, options.logprobs is not None, vocab_size)
    _check_logprobs("prompt_logprobs", state, prompt_ids[1:], False, vocab_size)
    starts = _context_starts(len(prompt_ids), n, options.window, n_positions)
    start = state["context_start"]
    _check(is_integer(start) and start in starts, "context_start", state, f"{min(starts)}")
    n_covered = state.get("n_covered", 0)
    _check(is_integer(n_covered) and n_covered >= 0, "n_covered", state, "an integer from 0")
    n_read, most = state["n_read"], n + _MAX_LAST_PIECES
    _check(is_integer(n_read) and 0 <= n_read <= most, "n_read", state, f"from 0 to {most}")


def check_constraint(ids: Sequence[int], constraint: Constraint | None) -> None:
    """Check that a constraint allows the ids of a state."""
    for token_id in ids:
        if constraint is None:
            return
        if not constraint.allowed()[token_id]:
            raise InvalidArgumentError(f"ids of the state: the constraint forbids {token_id}")
        constraint = constraint.advance(token_id)


def _check(is_valid: object, name: str, state: Mapping[str, Any], expected: str) -> None:
    if not is_valid:
        raise InvalidArgumentError(
            f"{name} of the state is {short_repr(state[name])}; it must be {expected}, as in "
            "TextStream.state"
        )


def _context_starts(n_prompt: int, n_new: int, window: int, n_positions: int) -> set[int]:
    """Return the values that `context_start` can have: before, and after the window slides."""
    start, length = 0, n_prompt + n_new
    if not window:
        return {0}
    for n_tokens in range(n_prompt, length):
        if n_tokens - start > n_positions:
            start = n_tokens - window
    return {start, length - window} if length - start > n_positions else {start}


def _check_logprobs(
    name: str, state: Mapping[str, Any], ids: Sequence[int], is_complete: bool, vocab_size: int
) -> None:
    """Check a list of log probabilities: of all `ids` if `is_complete`, else of the last."""
    tokens, least = state[name], len(ids) if is_complete else 0
    is_list = isinstance(tokens, (list, tuple)) and least <= len(tokens) <= len(ids)
    is_list = is_list and all(_is_logprob(token, vocab_size) for token in tokens)
    _check(is_list, name, state, f"a log probability for each of {len(ids)} ids")
    is_same = [token["id"] for token in tokens] == [*ids[len(ids) - len(tokens) :]]
    _check(is_same, name, state, "those of the ids")


def _is_logprob(token: object, vocab_size: int) -> bool:
    if not isinstance(token, Mapping) or token.keys() != {"id", "logprob", "top"}:
        return False
    top = token["top"]
    is_list = isinstance(top, (list, tuple)) and all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in top
    )
    return is_list and all(
        is_integer(token_id)
        and 0 <= token_id < vocab_size
        and isinstance(logprob, float)
        and not math.isnan(logprob)
        and logprob <= 0
        for token_id, logprob in [(token["id"], token["logprob"]), *top]
    )
