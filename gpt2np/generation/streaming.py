"""Streams of generated text: token ids are decoded as they arrive, up to a stop text.

A stop text is a stop string or the match of a stop regex.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gpt2np.display import colored_tokens
from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.callbacks import Callbacks, GeneratedToken
from gpt2np.generation.options import GenerationOptions
from gpt2np.generation.sampling import TokenLogprob
from gpt2np.generation.scheduler import Scheduler
from gpt2np.generation.sequence import FinishReason, RunningSequence, start_sequence
from gpt2np.generation.stopping import StopStrings
from gpt2np.model import GPT2
from gpt2np.tokenizer import StreamingDecoder, Tokenizer

if TYPE_CHECKING:
    from gpt2np.generation.stop_regex import StopPatterns

T = TypeVar("T")


@dataclass(frozen=True)
class Completion:
    """The result of a generation. Nothing changes it, so threads can share it.

    Attributes:
        prompt: the text of the prompt.
        prompt_ids: the ids of the prompt; for an empty prompt the end-of-text id.
        prompt_tokens: the text of each of `prompt_ids`; see `Tokenizer.token_texts`.
        text: the continuation, without the prompt and without the stop text.
        ids: all generated ids, including any end-of-text id and the ids of a stop text.
        tokens: the text of each of `ids`.
        finish_reason: "eos" (end-of-text id), "stop" (stop text, stop id, or a complete
            constraint), "length" (max_new_tokens, or a full context), "time" (max_time),
            "cancelled"; None while the generation runs.
        stop_reason: for the finish reason "stop", the stop text or stop id that ended the text;
            None for a complete constraint or a stopping criterion.
        seed: the seed that reproduces this continuation.
        model: the model's name.
        seconds: time of the generation, including prefill and any wait in a queue; ignored by `==`.
        logprobs: the log probability of each of `ids`, if requested.
        prompt_logprobs: the log probability of each of `prompt_ids`, if requested; None for the
            first id and for ids before the window.
        alternatives: further continuations of the prompt, if requested.
    """

    prompt: str
    prompt_ids: list[int]
    text: str
    ids: list[int]
    finish_reason: FinishReason | None
    seed: int
    model: str
    seconds: float = field(compare=False)
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    alternatives: tuple[Completion, ...] = ()
    prompt_tokens: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    stop_reason: str | int | None = None

    def _repr_html_(self) -> str:
        """Return the text for notebooks; with `logprobs`, tokens are colored by probability."""
        if not self.logprobs:
            return colored_tokens(self.prompt, [self.text])
        logprobs = [token.logprob for token in self.logprobs]
        return colored_tokens(self.prompt, self.tokens, logprobs)

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second; the time includes prefill."""
        return len(self.ids) / self.seconds if self.seconds else 0.0


_DEFAULTS = asdict(GenerationOptions())


def _logprob(fields: Mapping[str, Any]) -> TokenLogprob:
    """Create a TokenLogprob from the lists that JSON has instead of tuples."""
    return TokenLogprob(fields["id"], fields["logprob"], tuple(map(tuple, fields["top"])))


def _shallow_copy(source: T) -> T:
    """Return a shallow copy of a plain object, six times as fast as `copy.copy`."""
    result = object.__new__(type(source))
    result.__dict__.update(source.__dict__)
    return result


class StreamingDetokenizer:
    """The text of the token ids so far, up to a stop text.

    Pieces of text end at character boundaries. Text that may be the beginning of a stop text is
    held back. A detokenizer is immutable: `push` returns the next one.

    Attributes:
        seconds: time from the creation of the first detokenizer to the latest token id.
        n_pieces: number of pieces of text.
    """

    def __init__(
        self, tokenizer: Tokenizer, options: GenerationOptions, eos_token_ids: Collection[int] = ()
    ) -> None:
        """Create a detokenizer that skips `eos_token_ids` and `options.stop_token_ids`."""
        self._decoder: StreamingDecoder = tokenizer.streaming_decoder()
        self._stop_token_ids = options.stop_token_ids
        self._skipped_ids = {*eos_token_ids, *options.stop_token_ids}
        self._stops: StopStrings | StopPatterns
        if options.stop_regex:
            from gpt2np.generation.stop_regex import StopPatterns  # most texts need no regex

            self._stops = StopPatterns(options.stop, options.stop_regex)
        else:
            self._stops = StopStrings(options.stop)
        self._pieces: list[str] = []  # later detokenizers share the list
        self.n_pieces = 0
        self._started = time.perf_counter()
        self.seconds = 0.0

    @property
    def text(self) -> str:
        """The text so far."""
        return self.text_from(0)

    def text_from(self, piece: int) -> str:
        """Return the text from a piece on, given by its index."""
        return "".join(self._pieces[piece : self.n_pieces])

    @property
    def is_stopped(self) -> bool:
        """Whether the text has reached a stop text."""
        return self.stop_text is not None

    @property
    def stop_text(self) -> str | None:
        """The stop text that the text has reached, if any."""
        return self._stops.matched

    def stop_reason(self, reason: FinishReason | None, ids: Sequence[int]) -> str | int | None:
        """Return `Completion.stop_reason` of a text with a finish reason and these ids."""
        if reason != "stop" or self.stop_text is not None:
            return self.stop_text
        return ids[-1] if ids[-1] in self._stop_token_ids else None

    def push(self, token_id: int) -> StreamingDetokenizer:
        """Return the detokenizer after one more token id."""
        after = self._copy()
        if token_id not in self._skipped_ids:
            after._append(after._stops.push(after._decoder.push(token_id)))
        return after

    def finish(self) -> StreamingDetokenizer:
        """Return the detokenizer after the end: with the text held back, up to a stop text."""
        after = self._copy()
        if not after.is_stopped:
            after._append(after._stops.push(after._decoder.finish()))
        if not after.is_stopped:
            after._append(after._stops.finish())
        return after

    def _copy(self) -> StreamingDetokenizer:
        after = _shallow_copy(self)
        after._decoder, after._stops = _shallow_copy(self._decoder), _shallow_copy(self._stops)
        after.seconds = time.perf_counter() - self._started
        return after

    def _append(self, piece: str) -> None:
        self._pieces[self.n_pieces :] = [piece]  # replaces the piece of an interrupted step
        self.n_pieces += 1


class TextStream(Iterator[str]):
    """A continuation in progress: an iterator over the pieces of its text.

    A piece ends at a character boundary and contains no part of a stop text. The joined pieces
    equal `completion.text`. `async for` runs the streams of a model in one batch on a background
    thread. Without asyncio, add each stream's `sequence` to a `gpt2np.generation.Scheduler` instead
    of iterating. A stream can be pickled, copied, or saved as its `state`.

    Read and cancel a stream in one thread or task; a second reader at the same time gets an error.
    Different threads may read different streams, also of one prompt.
    """

    def __init__(
        self,
        model: GPT2,
        tokenizer: Tokenizer,
        prompt: str,
        prompt_ids: list[int],
        options: GenerationOptions,
        *,
        eos_token_ids: Collection[int] = (),
        name: str = "model",
        callbacks: Callbacks | None = None,
        index: int = 0,
        resume: Callable[..., TextStream] | None = None,
    ) -> None:
        """Create a stream; use `LanguageModel.stream` instead. `options.seed` must be set."""
        self.model = model
        self._name = name
        self._index = index
        self._resume = resume  # LanguageModel.resume, for pickle
        self._lock = threading.Lock()  # held by the reader
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._n_read = 0  # pieces
        self.sequence: RunningSequence = start_sequence(model, prompt_ids, options, eos_token_ids)
        self.sequence.listener = StreamingDetokenizer(tokenizer, options, eos_token_ids)
        self.sequence.callbacks = callbacks or Callbacks()
        if self.sequence.callbacks.on_token:
            self.sequence.on_token = self._call_on_token
        # Keep the KV cache at the end, because a chat reuses it for the next answer.
        self._scheduler = Scheduler(model, free_caches=False)

    @property
    def _detokenizer(self) -> StreamingDetokenizer:
        return cast(StreamingDetokenizer, self.sequence.listener)

    def __repr__(self) -> str:
        state = self.sequence.finish_reason or "running"
        text = self._prompt + self._detokenizer.text
        end = text if len(text) <= 60 else f"…{text[-59:]}"
        return f"<TextStream of {len(self.sequence.ids)} new tokens, {state}: {end!r}>"

    def _repr_html_(self) -> str:
        """Return the text so far, for notebooks."""
        return self.completion._repr_html_()

    def _call_on_token(self, token: TokenLogprob) -> None:
        [text] = self._tokenizer.token_texts([token.id])
        if on_token := self.sequence.callbacks.on_token:
            on_token(GeneratedToken(**vars(token), text=text, index=self._index))

    @property
    def state(self) -> dict[str, Any]:
        """The state of the generation, for JSON; `LanguageModel.resume` continues from the state.

        The state has neither callbacks nor the KV cache, which `resume` computes again.
        """
        sequence = self.sequence
        options = {k: v for k, v in asdict(sequence.options).items() if v != _DEFAULTS[k]}
        return {
            "prompt": self._prompt,
            "prompt_ids": list(sequence.prompt),
            "options": {**options, "logit_bias": dict(sequence.options.logit_bias)},
            "ids": list(sequence.ids),
            "logprobs": [asdict(token) for token in sequence.logprobs],
            "prompt_logprobs": [asdict(token) for token in sequence.prompt_logprobs],
            "context_start": sequence.context_start,
            "finish_reason": sequence.finish_reason,
            "n_read": self._n_read,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set a new stream, made with the same prompt and options, to a saved `state`."""
        sequence, self._prompt = self.sequence, state["prompt"]
        sequence.logprobs = [_logprob(token) for token in state["logprobs"]]
        sequence.prompt_logprobs = [_logprob(token) for token in state["prompt_logprobs"]]
        for token_id in state["ids"]:
            sequence.constraint = sequence.constraint and sequence.constraint.advance(token_id)
            sequence.ids.append(token_id)
            sequence.listener = self._detokenizer.push(token_id)
        sequence.context_start = state["context_start"]
        if state["finish_reason"]:
            sequence.listener = self._detokenizer.finish()
            sequence.finish_reason = state["finish_reason"]
        self._n_read = state["n_read"]

    @property
    def running(self) -> bool:
        """Whether the generation is still running."""
        return self.sequence.finish_reason is None

    @property
    def stop_reason(self) -> str | int | None:
        """See `Completion.stop_reason`."""
        return self._detokenizer.stop_reason(self.sequence.finish_reason, self.sequence.ids)

    @property
    def completion(self) -> Completion:
        """The result of the generation so far."""
        sequence, options = self.sequence, self.sequence.options
        known = sequence.prompt_logprobs
        unknown = [None] * (len(sequence.prompt) - len(known))
        return Completion(
            prompt=self._prompt,
            prompt_ids=list(sequence.prompt),
            text=self._detokenizer.text,
            ids=list(sequence.ids),
            finish_reason=sequence.finish_reason,
            seed=options.seed or 0,
            model=self._name,
            seconds=self._detokenizer.seconds,
            logprobs=None if options.logprobs is None else list(sequence.logprobs),
            prompt_logprobs=None if options.prompt_logprobs is None else [*unknown, *known],
            prompt_tokens=self._tokenizer.token_texts(sequence.prompt),
            tokens=self._tokenizer.token_texts(sequence.ids),
            stop_reason=self.stop_reason,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        if self._resume is None:
            raise TypeError("only a stream of a LanguageModel can be pickled")
        return _resume, (self._resume, self.state, self.sequence.callbacks)

    def __deepcopy__(self, memo: dict[int, Any]) -> TextStream:  # the copy has the same model
        return copy(self)

    def _reading(self) -> threading.Lock:
        """Return the lock that a reader holds.

        Raises:
            InvalidArgumentError: another thread or task is reading the stream.
        """
        if self._lock.locked():
            raise InvalidArgumentError(
                "another thread or task is reading this stream; read each stream in one place"
            )
        return self._lock

    def step(self) -> None:
        """Generate one token, or more with draft tokens; `new_text` returns their text.

        Raises:
            InvalidArgumentError: another thread or task is reading the stream.
        """
        with self._reading():
            if not self._scheduler.busy:
                self._scheduler.add(self.sequence)
            self._scheduler.step()

    def __next__(self) -> str:
        while self.running:
            self.step()
            if piece := self.new_text():
                return piece
        if self.sequence.error:
            raise self.sequence.error
        if piece := self.new_text():
            return piece
        raise StopIteration

    async def __aiter__(self) -> AsyncIterator[str]:
        from gpt2np.generation.async_engine import run_async

        with self._reading():
            async for piece in run_async(self):
                yield piece

    def new_text(self) -> str:
        """Return the text added since the last call; may be empty."""
        detokenizer = self._detokenizer
        text = detokenizer.text_from(self._n_read)
        self._n_read = detokenizer.n_pieces  # last, so that Ctrl-C loses no text
        return text

    def cancel(self) -> str:
        """End the generation; return the text added since the last call of `new_text`."""
        self.sequence.end("cancelled")
        return self.new_text()


def _resume(
    resume: Callable[..., TextStream], state: dict[str, Any], callbacks: Callbacks
) -> TextStream:
    return resume(state, **vars(callbacks))


def run_streams(
    streams: Sequence[TextStream], on_progress: Callable[[int], object] = lambda n_ended: None
) -> None:
    """Run the streams of one model in batches until all have ended.

    After each step, `on_progress` receives how many streams have ended.

    Raises:
        InvalidArgumentError: the options forbid every next token in a stream. The error is raised
            after the other streams have ended.
    """
    if not streams:
        return
    scheduler = Scheduler(streams[0].model)
    for stream in streams:
        scheduler.add(stream.sequence)
    while scheduler.busy:
        scheduler.step()
        on_progress(len(streams) - len(scheduler.running) - len(scheduler.waiting))
    for stream in streams:
        if stream.sequence.error:
            raise stream.sequence.error


def pick_best(streams: Sequence[TextStream]) -> Completion:
    """Return a prompt's first continuation, with the next continuations in `alternatives`.

    With `best_of`, continuations are sorted by mean log probability, highest first; ties keep the
    order of `streams`. A stream cancelled before the first token comes last.
    """
    options = streams[0].sequence.options
    if options.best_of is not None:
        streams = sorted(streams, key=lambda stream: stream.sequence.mean_logprob, reverse=True)
    first, *alternatives = (stream.completion for stream in streams[: options.num_return_sequences])
    return replace(first, alternatives=tuple(alternatives))
