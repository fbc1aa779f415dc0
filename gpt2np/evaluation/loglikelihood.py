"""Answers to the requests of lm-evaluation-harness 0.4, equal to those of the harness's `hf` model.

An empty context becomes an end-of-text token. A sequence that exceeds the model's context loses its
first tokens. As in the tokenizer of `transformers`, `<|endoftext|>` in a text is the special token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from gpt2np.errors import ContextLengthError, InvalidArgumentError
from gpt2np.generation.scoring import Span, Window, score_windows, windows_of
from gpt2np.language_model import LanguageModel


def encode_text(lm: LanguageModel, text: str) -> list[int]:
    """Encode a text, recognizing special tokens."""
    return lm.tokenizer.encode(text, allowed_special="all")


def require_bos_token_id(lm: LanguageModel) -> int:
    """Return `lm.bos_token_id`. Raises InvalidArgumentError if the model has no such id."""
    if lm.bos_token_id is None:
        raise InvalidArgumentError(
            f"{lm.name} has no end-of-text token to put before a text; choose another model"
        )
    return lm.bos_token_id


def continuation_window(lm: LanguageModel, context: str, continuation: str) -> Window:
    """Return the token ids of context and continuation; only the continuation is scored.

    As in `_encode_pair` of lm_eval, trailing white space of the context counts as continuation. The
    result holds the n ids of the context, then the ids of the joined text from index n on.

    Raises:
        InvalidArgumentError: the continuation adds no tokens.
        ContextLengthError: the continuation has more tokens than the model's context.
    """
    context_ids, ids = encode_text(lm, context.rstrip()), encode_text(lm, context + continuation)
    if not context_ids:
        context_ids = [require_bos_token_id(lm)]
        ids = ids if ids[:1] == context_ids else context_ids + ids
    continuation_ids = ids[len(context_ids) :]
    count, n_positions = len(continuation_ids), lm.model.config.n_positions
    if count < 1:
        raise InvalidArgumentError(f"nothing to predict: the continuation is {continuation!r}")
    if count > n_positions:
        raise ContextLengthError(
            f"{continuation[:40]!r}… has {count} tokens, more than the model's context of "
            f"{n_positions}; shorten the text"
        )
    ids = [*context_ids, *continuation_ids][-(n_positions + 1) :]
    return Window(np.array(ids), len(ids) - count)


def continuation_loglikelihoods(
    lm: LanguageModel, pairs: Sequence[tuple[str, str]]
) -> Iterator[tuple[float, bool]]:
    """Answer `loglikelihood` requests of lm_eval, pairs of context and continuation.

    Yields the continuation's log probability in nats, and whether greedy decoding generates the
    continuation.

    Raises the errors of `continuation_window`.
    """
    windows = [continuation_window(lm, *pair) for pair in pairs]
    for window, scored in zip(windows, score_windows(lm.model, windows), strict=True):
        is_greedy = bool((scored.best == window.ids[window.first :]).all())
        yield math.fsum(scored.logprobs), is_greedy


def rolling_spans(length: int, context: int) -> Iterator[Span]:
    """Split `length` tokens into windows in which each token but the first is scored once.

    Each window has `context` + 1 tokens, or all tokens of a shorter text. The last window may
    overlap the window before.
    """
    done = 1
    while done < length:
        stop = min(done + context, length)
        yield Span(max(0, stop - context - 1), done, stop)
        done = stop


def rolling_loglikelihoods(lm: LanguageModel, texts: Sequence[str]) -> Iterator[float]:
    """Answer `loglikelihood_rolling` requests of lm_eval, each a text.

    Yields the log probability of each text in nats. An end-of-text token precedes each text.
    """
    bos_token_id, context = require_bos_token_id(lm), lm.model.config.n_positions
    encoded = [np.array([bos_token_id, *encode_text(lm, text)]) for text in texts]
    windows = [[*windows_of(ids, rolling_spans(len(ids), context))] for ids in encoded]
    scores = score_windows(lm.model, chain(*windows))
    for text_windows in windows:
        yield sum(math.fsum(next(scores).logprobs) for _ in text_windows)
