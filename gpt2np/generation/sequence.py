"""One sequence during generation, and the prefix that several sequences share."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from threading import Lock
from typing import TYPE_CHECKING, Literal

from gpt2np.errors import ContextLengthError, InvalidArgumentError
from gpt2np.generation.callbacks import GeneratedToken
from gpt2np.generation.detokenizer import StreamingDetokenizer
from gpt2np.generation.logits_processors import TokenHistory, compute_logits
from gpt2np.generation.request import Request
from gpt2np.generation.sampling import (
    RandomGenerator,
    TokenLogprob,
    next_id,
    text_logprobs,
    token_logprob,
)
from gpt2np.kernels.array import Array
from gpt2np.model import GPT2, KVCache
from gpt2np.runtime.arguments import check_ids
from gpt2np.runtime.hooked_context import Hook, after_prompt

if TYPE_CHECKING:
    from gpt2np.checkpoint.config import GPT2Config
    from gpt2np.constraints import Constraint
    from gpt2np.generation.model_draft import ModelDraft
    from gpt2np.generation.ngram_draft import NgramDraft

FinishReason = Literal["eos", "length", "stop", "time", "cancelled"]


@dataclass
class RunningSequence:
    """The state of one sequence during generation.

    An exception, such as Ctrl-C, may interrupt a method anywhere. Everything derived from the
    request and `ids` is cached; after an interruption, it is computed again.

    Attributes:
        request: the prompt and how to continue it; the options' `seed` must be set.
        n_positions: the model's context length in tokens.
        vocab_size: the model's number of token ids.
        cache: KV cache of the tokens computed so far.
        rng: source of the random numbers, one per token.
        deadline: value of `time.monotonic()` at which the scheduler ends the sequence.
        started: value of `time.perf_counter()` at the start.
        shared_prefix: shared prompt whose KV cache the sequence has not yet copied, if any.
        speculation: source of draft tokens, if any.
        ids: the generated ids, including the one that ended the sequence.
        logprobs: log probabilities of `ids`, if requested.
        prompt_logprobs: log probabilities of the prompt's ids except the first, if requested.
        context_start: index, in prompt + ids, of the first token in the context.
        seconds: time from the start to the latest token id.
        n_read: number of pieces of the text that `new_text` has returned.
        error: the error that ended the sequence, if any.
        is_cancelled: whether `cancel` was called.
        cancel_error: the error that `cancel` received, if any.
        finish_reason: why the sequence ended, as in `Completion`; "cancelled" also after an error.
    """

    request: Request
    n_positions: int
    vocab_size: int
    cache: KVCache
    rng: RandomGenerator
    deadline: float = math.inf
    started: float = field(default_factory=time.perf_counter)
    shared_prefix: SharedPrefix | None = None
    speculation: NgramDraft | ModelDraft | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    context_start: int = 0
    seconds: float = 0.0
    n_read: int = 0
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    is_cancelled: bool = False
    cancel_error: Exception | None = None
    turn: int = 0  # in a scheduler's queue
    latest_pass: float = 0.0  # when it began, for a sequence with interventions
    _preparation: tuple[Constraint, Iterator[None]] | None = None  # of the next mask

    @cached_property
    def history(self) -> TokenHistory:
        """The token ids of prompt and continuation, counted for penalties and bans."""
        return TokenHistory(self.request.ids, self.ids)

    @cached_property
    def constraint(self) -> Constraint | None:
        """The state of the constraint after `ids`."""
        constraint = self.request.constraint
        for token_id in self.ids:
            constraint = constraint and constraint.advance(token_id)
        return constraint

    @cached_property
    def detokenizer(self) -> StreamingDetokenizer | None:
        """The text of `ids`; None without a tokenizer."""
        request = self.request
        if request.tokenizer is None:
            return None
        detokenizer = StreamingDetokenizer(
            request.tokenizer, request.options, request.eos_token_ids
        )
        for token_id in self.ids:
            detokenizer.push(token_id)
        if self.finish_reason:
            with suppress(InvalidArgumentError):  # see `end`
                detokenizer.finish()
        return detokenizer

    def recompute(self) -> None:
        """Drop everything derived from `ids`, after an interruption; it is computed when needed."""
        del self.logprobs[len(self.ids) :]
        for name in ("history", "constraint", "detokenizer"):
            self.__dict__.pop(name, None)

    @property
    def length(self) -> int:
        """Number of token ids, including the prompt."""
        return len(self.request.ids) + len(self.ids)

    @property
    def text(self) -> str:
        """The text of `ids`, up to a stop text; "" without a tokenizer."""
        return self.detokenizer.text if self.detokenizer else ""

    def new_text(self) -> str:
        """Return the text added since the last call; may be empty."""
        pieces = self.detokenizer.pieces[self.n_read :] if self.detokenizer else []
        text = "".join(pieces)
        self.n_read += len(pieces)
        return text

    @property
    def stop_reason(self) -> str | int | None:
        """See `Completion.stop_reason`."""
        if self.detokenizer is None:
            return None
        return self.detokenizer.stop_reason(self.finish_reason, self.ids)

    @property
    def hook(self) -> Hook | None:
        """The caller's hook for the next forward pass, if any."""
        hook = self.request.callbacks.interventions
        return after_prompt(hook) if hook and self.cache.length else hook

    @property
    def mean_logprob(self) -> float:
        """Mean log probability of the generated tokens; -inf before the first token."""
        if not self.logprobs:
            return -math.inf
        return sum(token.logprob for token in self.logprobs) / len(self.logprobs)

    @property
    def tokens_left(self) -> int:
        """Number of tokens that context length and `max_new_tokens` allow after the next token."""
        left = self.request.options.max_new_tokens - len(self.ids) - 1
        return min(left, self.n_positions - (self.length - self.context_start))

    @property
    def has_begun(self) -> bool:
        """Whether any token is computed, apart from a shared prefix."""
        return bool(self.ids or self.cache.length)

    @property
    def n_pending(self) -> int:
        """Number of token ids in the context that are not yet in the KV cache."""
        return self.length - self.context_start - self.cache.length

    def pending_ids(self) -> list[int]:
        """Return the token ids in the context that are not yet in the KV cache."""
        return self.ids_from(self.context_start + self.cache.length)

    def ids_from(self, start: int) -> list[int]:
        """Return the token ids of prompt + ids from index `start` on."""
        first = start - len(self.request.ids)
        return self.ids[first:] if first >= 0 else [*self.request.ids[first:], *self.ids]

    def slide_window(self) -> None:
        """If the context is full, restart the context from the last `window` tokens.

        This empties the KV cache, because keys and values depend on the tokens' positions.
        """
        if self.length - self.context_start > self.n_positions:
            self.cache.truncate(0)
            self.context_start = self.length - self.request.options.window

    def prepare_mask(self, deadline: float) -> bool:
        """Compute the constraint's mask of the next token; return whether the mask is ready.

        The work pauses at `deadline`, a time of `time.perf_counter`; the next call resumes it.

        Raises:
            InvalidArgumentError: the constraint is too large.
        """
        constraint = self.constraint
        if constraint is None:
            return True
        if self._preparation is None or self._preparation[0] is not constraint:
            prepare = getattr(constraint, "prepare", None)  # a constraint of the caller has none
            self._preparation = constraint, prepare() if prepare else iter(())
        return all(time.perf_counter() < deadline for _ in self._preparation[1])

    def accept(self, logits: Array, draft: Sequence[int] = ()) -> int:
        """Select and append one token per row of logits until a draft token is rejected.

        `logits` is (1 + len(draft), V). Row i predicts draft[i], and the last row predicts the
        token after the draft. A draft token is accepted if the token selected from the row is the
        same. Returns the number of accepted draft tokens. A cancelled sequence gets one token.

        Raises:
            InvalidArgumentError: options and constraint forbid every next token.
        """
        n_accepted = 0
        try:
            for row in logits:
                token_id = self.choose(row)
                self.append(token_id, row)
                if self.finish_reason or self.is_cancelled or n_accepted == len(draft):
                    break
                if token_id != draft[n_accepted]:
                    break
                n_accepted += 1
        except BaseException:  # also KeyboardInterrupt
            self.recompute()
            raise
        if draft:
            self.drop_rejected()
        return n_accepted

    def drop_rejected(self) -> None:
        """Truncate the KV cache before the last token, which the next step computes."""
        n_kept = self.length - self.context_start - 1
        if self.cache.length > n_kept:
            self.cache.truncate(n_kept)

    def choose(self, logits: Array) -> int:
        """Select the next token id from logits (V,). Raises the same errors as `accept`."""
        logits = self.request.process(logits, self.history, self.constraint)
        return next_id(logits, self.request.options, partial(self.rng.number, len(self.ids)))

    def append(self, token_id: int, logits: Array) -> None:
        """Append a token id selected from logits (V,); update the state and `finish_reason`."""
        options, logprob = self.request.options, None
        on_token = self.request.callbacks.on_token
        if options.logprobs is not None or options.best_of is not None or on_token:
            logprob = token_logprob(logits, token_id, options.logprobs or 0)
        if self.constraint:
            self.constraint = self.constraint.advance(token_id)
        if self.detokenizer:
            self.detokenizer.push(token_id)
        reason = self._finish_reason_after(token_id, logits)
        if reason and self.detokenizer and self.detokenizer.finish():
            reason = "stop"
        self.seconds = time.perf_counter() - self.started
        if logprob:
            self.logprobs.append(logprob)
        self.finish_reason = reason
        self.ids.append(token_id)
        if logprob and on_token:
            tokenizer = self.request.tokenizer
            [text] = tokenizer.token_texts([token_id]) if tokenizer else [""]
            on_token(GeneratedToken(**vars(logprob), text=text, index=self.request.index))

    def _finish_reason_after(self, token_id: int, logits: Array) -> FinishReason | None:
        """Return why the sequence ends after `token_id`, if it does."""
        request, options = self.request, self.request.options
        if token_id in request.eos_token_ids:
            return "eos"
        if token_id in options.stop_token_ids:
            return "stop"
        if self.detokenizer and self.detokenizer.is_stopped:
            return "stop"
        if self.constraint and self.constraint.complete:
            return "stop"
        for stops in request.callbacks.stopping_criteria:
            if stops([*request.ids, *self.ids, token_id], logits):
                return "stop"
        is_full = self.length - self.context_start >= self.n_positions and not options.window
        return "length" if is_full or len(self.ids) + 1 == options.max_new_tokens else None

    def cancel(self, error: Exception | None = None) -> None:
        """Ask the scheduler to end the sequence before the next step, with `error` if given.

        Any thread may call this, whereas `end` must not run during a step. Later calls have no
        effect.
        """
        if not self.is_cancelled:
            self.cancel_error, self.is_cancelled = error, True

    def end(self, reason: FinishReason, error: Exception | None = None) -> None:
        """End the sequence. Does nothing if the sequence has already ended."""
        if self.finish_reason is not None:
            return
        try:
            with suppress(InvalidArgumentError):  # a stop regex that takes too long
                if self.detokenizer and self.detokenizer.finish():
                    reason = "stop"
        except BaseException:
            self.recompute()
            raise
        self.error = error
        self.finish_reason = reason
        self._preparation = None


def start_sequence(model: GPT2, request: Request) -> RunningSequence:
    """Create a sequence that is ready for its first decode step.

    With `options.window`, a prompt longer than the context is reduced to its last `window` tokens.

    Raises:
        ContextLengthError: the prompt is longer than the context, and no window is set.
        InvalidArgumentError: the prompt is empty, the window exceeds the context, or a token id in
            prompt or options is outside the vocabulary.
    """
    config, options = model.config, request.options
    _check(request, config)
    return RunningSequence(
        request,
        config.n_positions,
        config.vocab_size,
        cache=model.new_cache(),
        rng=RandomGenerator(options.seed),
        deadline=time.monotonic() + (options.max_time or math.inf),
        speculation=request.new_draft() if request.new_draft else None,
    )


def _check(request: Request, config: GPT2Config) -> None:
    prompt, options = request.ids, request.options
    if not prompt:
        raise InvalidArgumentError("the prompt has no ids; start from the end-of-text id instead")
    if len(prompt) > config.n_positions and not options.window:
        window = ", or set {window}, which keeps its last tokens"  # but not for beam search
        raise ContextLengthError(
            f"the prompt has {len(prompt)} tokens, more than the model's context of "
            f"{config.n_positions}; shorten it to at most {config.n_positions} tokens"
            f"{window if options.num_beams == 1 else ''}",
            window=options.window,
        )
    if options.window > config.n_positions:
        raise InvalidArgumentError(
            f"{{window}} is {options.window}, more than the model's context of "
            f"{config.n_positions}",
            window=options.window,
        )
    biased = [i for i, _ in options.logit_bias]
    banned = [i for word in options.bad_words_ids for i in word]
    check_ids("prompt", prompt, config.vocab_size)
    check_ids("logit_bias", biased, config.vocab_size)
    check_ids("bad_words_ids", banned, config.vocab_size)
    check_ids("stop_token_ids", options.stop_token_ids, config.vocab_size)


@dataclass(eq=False)
class SharedPrefix:
    """A prompt shared by several sequences, whose keys and values are computed once.

    The last token is excluded: each sequence computes the last token, to get the first logits.
    """

    ids: Sequence[int]  # the prompt
    n_pending: int  # number of sequences that still need a copy
    top: int | None  # the option `prompt_logprobs`
    computed: KVCache | None = None  # keys and values of the first ids, if known
    cache: KVCache | None = None
    n_computed: int = 0  # number of tokens whose keys and values are in `cache`
    logprobs: list[TokenLogprob] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)  # the sequences may run in several threads

    @property
    def is_computed(self) -> bool:
        """Whether the keys and values of all tokens but the last are known."""
        return self.cache is not None and self.n_computed == len(self.ids) - 1

    def compute(self, model: GPT2, budget: int) -> int:
        """Compute the keys and values of at most `budget` further tokens; return the cost.

        A token with log probabilities takes twice the time, and costs 2.
        """
        cost = 1 if self.top is None else 2
        if self.cache is None:
            cache = self.computed.copy() if self.computed else model.new_cache()
            cache.truncate(min(cache.length, len(self.ids) - 1))
            self.cache, self.n_computed = cache, cache.length
        start = self.n_computed
        stop = min(start + -(-budget // cost), len(self.ids) - 1)
        self.cache.truncate(start)  # Ctrl-C may have interrupted an earlier call
        if self.top is not None:
            self.logprobs[start:] = text_logprobs(model, self.ids[: stop + 1], self.top, self.cache)
        elif new_ids := self.ids[start:stop]:
            compute_logits(model, [new_ids], [self.cache], logits_indices=[])
        self.n_computed = stop
        return (stop - start) * cost

    def copy_to(self, sequence: RunningSequence) -> None:
        """Give a sequence the prompt's KV cache and log probabilities."""
        assert self.cache is not None
        sequence.prompt_logprobs = self.logprobs
        sequence.cache = self.cache.copy() if self.n_pending > 1 else self.cache
        sequence.shared_prefix = None
        self.n_pending -= 1


def share_prefix(sequences: Sequence[RunningSequence]) -> None:
    """Make sequences with the same prompt compute the prompt only once.

    The keys and values of the request's `prefix`, if any, are not computed again.
    """
    first = sequences[0]
    request, top = first.request, first.request.options.prompt_logprobs
    computed = request.prefix.cache if request.prefix else None
    is_alone = len(sequences) == 1 and top is None and not computed
    if request.callbacks.interventions or is_alone:
        return
    for sequence in sequences:
        sequence.slide_window()
    ids = request.ids[first.context_start :]
    if first.context_start or top is not None:
        computed = None  # other positions, or the logits are needed
    prefix = SharedPrefix(ids, len(sequences), top, computed)
    for sequence in sequences:
        sequence.shared_prefix = prefix
