"""One sequence during generation."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING

from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.completion import Completion, FinishReason
from gpt2np.generation.detokenizer import StreamingDetokenizer
from gpt2np.generation.request import GeneratedToken, Request
from gpt2np.generation.sampling import RandomGenerator, TokenLogprob, next_id, token_logprob
from gpt2np.kernels.array import Array, BoolArray
from gpt2np.model import GPT2
from gpt2np.runtime.arguments import check_ids, check_prompt_length

if TYPE_CHECKING:
    from gpt2np.constraints import Constraint


@dataclass
class RunningSequence:
    """The state of one sequence during generation.

    Attributes:
        request: the prompt and how to continue it; the options' `seed` must be set.
        model: the model that generates.
        started: value of `time.perf_counter()` at the start.
        ids: the generated ids, including the one that ended the sequence.
        prompt_logprobs: log probabilities of the prompt's ids except the first, if requested.
        seconds: time from the start to the latest token id.
        step_seconds: time of the last step for this sequence alone, without its mask.
        n_read: number of pieces of the text that `new_text` has returned.
        finish_reason: why the sequence ended, as in `Completion`; "cancelled" also after an error.
        cache: KV cache of the tokens computed so far.
        deadline: value of `time.monotonic()` at which the scheduler ends the sequence.
    """

    request: Request
    model: GPT2
    started: float = field(default_factory=time.perf_counter)
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    seconds: float = 0.0
    step_seconds: float = 0.0
    n_read: int = 0
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    is_cancelled: bool = False

    def __post_init__(self) -> None:
        request, options = self.request, self.request.options
        self.cache = self.model.new_cache()
        self.rng = RandomGenerator(options.seed)
        self.deadline = time.monotonic() + (options.max_time or math.inf)
        self.constraint: Constraint | None = request.constraint
        self.mask: BoolArray | None = None  # of the next token, once it is computed
        self.detokenizer = new_detokenizer(request)
        self.drafter = request.draft_source.start() if request.draft_source else None

    @property
    def length(self) -> int:
        """Number of token ids, including the prompt."""
        return len(self.request.ids) + len(self.ids)

    def new_text(self) -> str:
        """Return the text added since the last call; may be empty."""
        pieces = self.detokenizer.pieces[self.n_read :]
        text = "".join(pieces)
        self.n_read += len(pieces)  # last: Ctrl-C before it loses no text
        return text

    @property
    def stop_reason(self) -> str | int | None:
        """See `Completion.stop_reason`."""
        stop_text, stop_ids = self.detokenizer.stop_text, self.request.options.stop_token_ids
        is_id = self.finish_reason == "stop" and not stop_text and self.ids[-1] in stop_ids
        return self.ids[-1] if is_id else stop_text

    @property
    def completion(self) -> Completion:
        """The result of the generation so far."""
        request, options, ids = self.request, self.request.options, list(self.ids)
        assert request.tokenizer is not None
        n_missing = len(request.ids) - 1 - len(self.prompt_logprobs)
        return Completion(
            prompt=request.text,
            prompt_ids=list(request.ids),
            prompt_tokens=request.tokenizer.token_texts(request.ids),
            text=self.detokenizer.text,
            ids=ids,
            tokens=request.tokenizer.token_texts(ids),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            seed=options.seed or 0,
            model=request.model_name,
            seconds=self.seconds,
            logprobs=None if options.logprobs is None else list(self.logprobs),
            prompt_logprobs=None
            if options.prompt_logprobs is None
            else [None, *self.prompt_logprobs, *[None] * n_missing],
            options=options,
        )

    @property
    def tokens_left(self) -> int:
        """Number of tokens that context length and `max_new_tokens` allow after the next token."""
        left = self.request.options.max_new_tokens - len(self.ids) - 1
        return min(left, self.model.config.n_positions - self.length)

    @property
    def scores_prompt(self) -> bool:
        """Whether the next pass computes log probabilities of prompt tokens."""
        return self.request.options.prompt_logprobs is not None and not self.ids

    @property
    def n_pending(self) -> int:
        """Number of token ids that are not yet in the KV cache."""
        return self.length - self.cache.length

    def pending_ids(self) -> list[int]:
        """Return the token ids that are not yet in the KV cache."""
        first = self.cache.length - len(self.request.ids)
        return self.ids[first:] if first >= 0 else [*self.request.ids[first:], *self.ids]

    def accept(self, logits: Array, draft: Sequence[int] = ()) -> None:
        """Select and append one token per row of logits until a draft token is rejected.

        `logits` is (1 + len(draft), V). Row i predicts draft[i], and the last row predicts the
        token after the draft. A draft token is accepted if the token selected from the row is the
        same. A cancelled sequence gets one token.

        Raises:
            InvalidArgumentError: options and constraint forbid every next token.
        """
        for i, row in enumerate(logits):
            token_id = self.choose(row)
            self.append(token_id, row)
            is_accepted = i < len(draft) and token_id == draft[i]
            if self.finish_reason or self.is_cancelled or not is_accepted:
                break
        if self.cache.length >= self.length:  # the next step computes the last token
            self.cache.truncate(self.length - 1)

    def score_prompt(self, first: int, logits: Array) -> None:
        """Append log probabilities of prompt tokens; logits (n, V) follow tokens `first` and on."""
        top = self.request.options.prompt_logprobs or 0
        targets = self.request.ids[first + 1 : first + 1 + len(logits)]
        rows = logits[: len(targets)]
        self.prompt_logprobs += map(token_logprob, rows, targets, repeat(top))

    def prepare_mask(self) -> None:
        """Compute the constraint's mask of the next token, which may take long."""
        if self.constraint and self.mask is None:
            self.mask = self.constraint.allowed()

    def choose(self, logits: Array) -> int:
        """Select the next token id from logits (V,). Raises the same errors as `accept`."""
        self.prepare_mask()
        logits = self.request.process(logits, self.ids, self.mask)
        return next_id(logits, self.request.options, partial(self.rng.number, len(self.ids)))

    def append(self, token_id: int, logits: Array) -> None:
        """Append a token id selected from logits (V,); update the state and `finish_reason`."""
        options, logprob = self.request.options, None
        on_token = self.request.callbacks.on_token
        if options.logprobs is not None or on_token:
            logprob = token_logprob(logits, token_id, options.logprobs or 0)
        if self.constraint:
            self.constraint, self.mask = self.constraint.advance(token_id), None
        self.detokenizer.push(token_id)
        reason = self._finish_reason_after(token_id, logits)
        if reason and self.detokenizer.finish():
            reason = "stop"
        self.seconds = time.perf_counter() - self.started
        if logprob:
            self.logprobs.append(logprob)
        self.ids.append(token_id)
        self.finish_reason = reason  # last: see `interrupt`
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
        if self.detokenizer.stop_text:
            return "stop"
        if self.constraint and self.constraint.complete:
            return "stop"
        for stops in request.callbacks.stopping_criteria:
            if stops([*request.ids, *self.ids, token_id], logits):
                return "stop"
        is_full = self.length >= self.model.config.n_positions
        return "length" if is_full or len(self.ids) + 1 == options.max_new_tokens else None

    def cancel(self) -> None:
        """Ask the scheduler to end the sequence before the next step.

        Any thread may call this, whereas `end` must not run during a step.
        """
        self.is_cancelled = True

    def end(self, reason: FinishReason, error: Exception | None = None) -> None:
        """End the sequence. Does nothing if the sequence has already ended."""
        if self.finish_reason is not None:
            return
        if self.detokenizer.finish():
            reason = "stop"
        self.error = error
        self.finish_reason = reason

    def interrupt(self, error: BaseException) -> None:
        """End the sequence after an exception at any point; decode its text afresh from `ids`.

        Only an `Exception`, not Ctrl-C, becomes the sequence's `error`. Does nothing if the
        sequence has already ended.
        """
        if self.finish_reason is None:
            del self.logprobs[len(self.ids) :]
            detokenizer = new_detokenizer(self.request)
            for token_id in self.ids:
                detokenizer.push(token_id)
            self.detokenizer = detokenizer
            self.end("cancelled", error if isinstance(error, Exception) else None)


def new_detokenizer(request: Request) -> StreamingDetokenizer:
    """Return a detokenizer of a request's new tokens."""
    return StreamingDetokenizer(
        request.tokenizer, request.options, request.eos_token_ids, request.n_healed
    )


def start_sequences(model: GPT2, request: Request) -> list[RunningSequence]:
    """Return one sequence per continuation, with consecutive seeds and indices."""
    if request.options.num_beams > 1:
        raise InvalidArgumentError(
            f"num_beams is {request.options.num_beams}: beam search runs alone; call generate",
            param="num_beams",
        )
    options, n = request.options, request.options.num_return_sequences
    seeded = [options.with_seed((options.seed or 0) + i) for i in range(n)]
    return [
        start_sequence(model, replace(request, options=each, index=request.index + i))
        for i, each in enumerate(seeded)
    ]


def start_sequence(model: GPT2, request: Request) -> RunningSequence:
    """Create a sequence that is ready for its first decode step.

    Raises:
        ContextLengthError: the prompt is longer than the context.
        InvalidArgumentError: the prompt is empty, or a token id in prompt or options is outside the
            vocabulary.
    """
    config, options, prompt = model.config, request.options, request.ids
    if not prompt:
        raise InvalidArgumentError("the prompt has no ids; start from the end-of-text id instead")
    check_prompt_length(len(prompt), config)
    biased = [i for i, _ in options.logit_bias]
    banned = [i for word in options.bad_words_ids for i in word]
    check_ids("prompt", prompt, config.vocab_size)
    check_ids("logit_bias", biased, config.vocab_size)
    check_ids("bad_words_ids", banned, config.vocab_size)
    check_ids("stop_token_ids", options.stop_token_ids, config.vocab_size)
    return RunningSequence(request, model)
