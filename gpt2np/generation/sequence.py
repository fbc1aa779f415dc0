"""One sequence that is being generated, with all that belongs to it alone."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from numpy.typing import NDArray

from gpt2np.errors import ContextLengthError, GPT2NPError, InvalidArgumentError
from gpt2np.generation.logprobs import TokenLogprob, token_logprob
from gpt2np.generation.options import GenerationOptions
from gpt2np.generation.penalties import penalized
from gpt2np.generation.sampler import RandomStream, next_id
from gpt2np.model import GPT2, KVCache
from gpt2np.runtime.arguments import check_sequences

if TYPE_CHECKING:
    from gpt2np.constraints import Constraint
    from gpt2np.generation.prompt import SharedPrompt
    from gpt2np.generation.speculate import Speculation

Array = NDArray[Any]
FinishReason = Literal["eos", "length", "stop", "cancelled"]


class Listener(Protocol):
    """Who is told every id as it comes, and may end the sequence."""

    def push(self, token_id: int) -> bool:
        """Take an id, none that ends the text by itself; whether the sequence must stop with it."""

    def finish(self) -> bool:
        """Nothing more comes; whether that shows that the sequence has stopped."""


@dataclass
class RunningSequence:
    """A sequence between its prompt and its end.

    Attributes:
        prompt: the ids it starts from, at least one.
        options: how it goes on; `seed` must be set, and `bad_words` be ids.
        eos_token_ids: ids that end it.
        n_positions: the model's context.
        vocab_size: the number of its ids.
        cache: keys and values of the ids that have been through the model.
        rng: its own random stream.
        constraint: the state of what it must become, if there is such a thing.
        shared: what it has in common with other sequences of the same prompt, until its first step.
        speculation: how its next ids are guessed, if they are.
        listener: who is told its ids.
        ids: what has been generated, including the id that ended it.
        logprobs: what the model said of these, if it was asked.
        prompt_logprobs: what it said of the prompt's ids from the second on, if it was asked.
        start: the first id, counted from the prompt's first, that is in the context.
        finish_reason: None while it runs; "eos" after one of `eos_token_ids`, "length" at
            `max_new_tokens` or when the context is full, "stop" after a stop id, where its listener
            wants it or its constraint is complete, "cancelled" if its owner ends it.
        error: why it can't go on, if that is the reason for its end.
    """

    prompt: Sequence[int]
    options: GenerationOptions
    eos_token_ids: Collection[int]
    n_positions: int
    vocab_size: int
    cache: KVCache
    rng: RandomStream
    constraint: Constraint | None = None
    shared: SharedPrompt | None = None
    speculation: Speculation | None = None
    listener: Listener | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    start: int = 0
    finish_reason: FinishReason | None = None
    error: GPT2NPError | None = None

    @property
    def length(self) -> int:
        """The number of ids, the prompt's included."""
        return len(self.prompt) + len(self.ids)

    @property
    def mean_logprob(self) -> float:
        """Of the ids generated, if `logprobs` or `best_of` asked for them; -inf where none are."""
        if not self.logprobs:
            return -math.inf
        return sum(each.logprob for each in self.logprobs) / len(self.logprobs)

    @property
    def pending(self) -> list[int]:
        """The ids in the context that have not been through the model yet."""
        return [*self.prompt, *self.ids][self.start + self.cache.length :]

    @property
    def room(self) -> int:
        """How many ids beyond the next one there may still be in this context and this text."""
        left = self.options.max_new_tokens - len(self.ids) - 1
        return min(left, self.n_positions - (self.length - self.start))

    def make_room(self) -> None:
        """Where the context is full, keep its last `window` ids, to go through the model anew.

        A position's embedding is part of what the keys and values were computed from, so that they
        can't be moved.
        """
        if self.length - self.start > self.n_positions:
            self.start = self.length - self.options.window
            self.cache.truncate(0)

    def take(self, logits: Array, guessed: Sequence[int] = ()) -> int:
        """Go on by the ids that the rows of logits (1 + guessed, V) lead to.

        The first row belongs to the last id, the others to the `guessed` ones, which count as far
        as they are what would have come without them. Returns how many of them were.
        """
        taken = 0
        for row in logits:
            chosen = self.choose(row)
            self.append(chosen, row)
            if self.finish_reason or taken == len(guessed) or chosen != guessed[taken]:
                break
            taken += 1
        self.cache.truncate(min(self.cache.length, self.length - self.start - 1))
        return taken

    def choose(self, logits: Array) -> int:
        """The next id, from the logits (V) after the last one.

        Raises:
            InvalidArgumentError: penalties and constraint rule out every id.
        """
        logits = penalized(
            logits, self.options, self.prompt, self.ids, self.eos_token_ids, self.constraint
        )
        return next_id(logits, self.options, self.rng)

    def append(self, token_id: int, logits: Array) -> None:
        """Take an id that was chosen from logits (V), and note whether it is the last."""
        options = self.options
        self.ids.append(token_id)
        if options.logprobs is not None or options.best_of is not None:
            self.logprobs.append(token_logprob(logits, token_id, options.logprobs or 0))
        if self.constraint:
            self.constraint = self.constraint.advance(token_id)
        self.finish_reason = self._reason(token_id)
        if self.finish_reason and self.listener and self.listener.finish():
            self.finish_reason = "stop"

    def end(self, reason: FinishReason, error: GPT2NPError | None = None) -> None:
        """End it here, unless it has ended."""
        if self.finish_reason is None:
            self.finish_reason, self.error = reason, error
            if self.listener and self.listener.finish():
                self.finish_reason = "stop"

    def _reason(self, token_id: int) -> FinishReason | None:
        if token_id in self.eos_token_ids:
            return "eos"
        if token_id in self.options.stop_token_ids:
            return "stop"
        if self.listener and self.listener.push(token_id):
            return "stop"
        if self.constraint and self.constraint.complete:
            return "stop"
        full = self.length - self.start > self.n_positions and not self.options.window
        return "length" if full or len(self.ids) == self.options.max_new_tokens else None


def start_sequence(
    model: GPT2, prompt: Sequence[int], options: GenerationOptions, eos_token_ids: Collection[int]
) -> RunningSequence:
    """A sequence that is ready for its first step; nothing is computed yet.

    With a window, a prompt that is longer than the context begins with its last `window` ids.

    Raises:
        ContextLengthError: the prompt is longer than the model's context.
        InvalidArgumentError: the prompt is empty or has ids that the model doesn't have, or the
            options name such.
    """
    config = model.config
    if not prompt:
        raise InvalidArgumentError("the prompt has no ids; start from the end-of-text id instead")
    if len(prompt) > config.n_positions and not options.window:
        raise ContextLengthError(
            f"the prompt has {len(prompt)} tokens, more than the model's context of "
            f"{config.n_positions}; shorten it to at most {config.n_positions} tokens, or set a "
            f"window, which keeps its last ones"
        )
    if options.window > config.n_positions:
        raise InvalidArgumentError(
            f"window is {options.window}, more than the model's context of {config.n_positions}"
        )
    check_sequences([prompt], config.vocab_size)
    _check_ids(options, config.vocab_size)
    rng, cache = RandomStream(options.seed), model.new_cache()
    sizes = config.n_positions, config.vocab_size
    return RunningSequence(prompt, options, eos_token_ids, *sizes, cache, rng)


def _check_ids(options: GenerationOptions, vocab_size: int) -> None:
    named = {
        "logit_bias": [i for i, _ in options.logit_bias],
        "bad_words": [i for word in options.bad_words if not isinstance(word, str) for i in word],
        "stop_token_ids": options.stop_token_ids,
    }
    for name, ids in named.items():
        if too_large := [i for i in ids if i >= vocab_size]:
            raise InvalidArgumentError(
                f"{name}: id {too_large[0]} is not in the model's vocabulary of {vocab_size}"
            )
