"""The result of a generation, and the stream of a text in progress."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from string import ascii_letters, digits
from typing import Any

from gpt2np.display import colored_tokens
from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.options import GenerationOptions
from gpt2np.generation.request import Request
from gpt2np.generation.sampling import TokenLogprob
from gpt2np.generation.scheduler import Scheduler
from gpt2np.generation.sequence import FinishReason, start_sequence
from gpt2np.model import GPT2

# Only Latin letters: other scripts may have no spaces between words.
_WORD_CHARACTERS = frozenset(ascii_letters + digits)
_BEFORE_A_SPACE = _WORD_CHARACTERS.union(".,:;!?")


def prompt_notice(prompt: str, options: GenerationOptions) -> str | None:
    """Return advice if a prompt ends in a space, or its constraint lacks a space at its start."""
    if prompt[-1:] in _BEFORE_A_SPACE:
        if options.regex and _begins_with_a_word(options.regex):
            return "no space separates the prompt from the regex; begin the regex with a space"
        return _missing_space(prompt, options.choices, "the prompt")
    if not prompt.endswith(" "):
        return None
    advice = "the prompt ends in a space; GPT-2's words begin with their space, so leave it out"
    if options.choices or options.regex:
        return f"{advice} of the prompt, and begin the constraint with it"
    return advice


def given_notice(given: str, texts: Sequence[str]) -> str | None:
    """Return advice if `given` ends in a space, or a text to score lacks its space."""
    if given.strip() and given.endswith(" ") and texts:
        return "`given` ends in a space; move the space to `text`: GPT-2's words begin with theirs"
    return _missing_space(given, texts, "`given`")


def _missing_space(before: str, texts: Iterable[str], name: str) -> str | None:
    """Return advice if no space separates `before` from a word that begins one of `texts`.

    `name` is what the advice calls the text `before`.
    """
    if before[-1:] not in _BEFORE_A_SPACE:
        return None
    first = next((text for text in texts if text[:1] in _WORD_CHARACTERS), None)
    return first and f"no space separates {name} from {first!r}; give {' ' + first!r}"


def _begins_with_a_word(pattern: str) -> bool:
    """Return whether letters and digits are the only ASCII characters that can begin a match."""
    from gpt2np.constraints.automaton import DEAD, ByteAutomaton
    from gpt2np.constraints.syntax import parse

    automaton = ByteAutomaton.of(parse(pattern))
    start = automaton.start
    first = {chr(code) for code in range(128) if automaton.after(start, bytes([code])) != DEAD}
    return bool(first) and first <= _WORD_CHARACTERS


@dataclass(frozen=True)
class Completion:
    """The result of a generation. It never changes, so threads can share it.

    Attributes:
        prompt: the text of the prompt.
        prompt_ids: the ids of the prompt; for an empty prompt, the end-of-text id.
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
        options: the options of the generation; ignored by `==`.
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
    options: GenerationOptions = field(default_factory=GenerationOptions, repr=False, compare=False)

    @classmethod
    def of(cls, request: Request, *, ids: list[int], **result: Any) -> Completion:
        """Create a completion: `result` has the fields that do not follow from the request."""
        assert request.tokenizer is not None
        return cls(
            prompt=request.text,
            prompt_ids=list(request.ids),
            prompt_tokens=request.tokenizer.token_texts(request.ids),
            ids=ids,
            tokens=request.tokenizer.token_texts(ids),
            seed=request.options.seed or 0,
            model=request.model_name,
            options=request.options,
            **result,
        )

    def _repr_html_(self) -> str:
        """Return the text for notebooks; with `logprobs`, tokens are colored by probability."""
        if not self.logprobs:
            return colored_tokens(self.prompt, [self.text])
        logprobs = [token.logprob for token in self.logprobs]
        return colored_tokens(self.prompt, self.tokens, logprobs)

    @property
    def notice(self) -> str | None:
        """Advice about the space after the prompt, or None; see `prompt_notice`."""
        return prompt_notice(self.prompt, self.options)

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second; the time includes prefill."""
        return len(self.ids) / self.seconds if self.seconds else 0.0


class TextStream(Iterator[str]):
    """A continuation in progress: an iterator over the pieces of its text.

    A piece ends at a character boundary and contains no part of a stop text. The joined pieces
    equal `completion.text`. `async for` runs the streams of a model in one batch on a background
    thread. To run streams in one batch without asyncio, do not iterate; instead, add each stream's
    `sequence` to a `gpt2np.generation.Scheduler`.

    Read a stream in one thread or task; a second reader at the same time gets an error. Any thread
    or task may cancel a stream that is read, but for a stream in a Scheduler of another thread,
    call `stream.sequence.cancel`. Different threads may read different streams, even streams of the
    same prompt.
    """

    def __init__(self, request: Request, model: GPT2) -> None:
        """Create a stream; use `LanguageModel.stream` instead."""
        self.sequence = start_sequence(model, request)
        self.model = model
        self._reader = threading.Lock()  # held by the reader
        self._state = threading.Lock()  # held during a step
        # Keep the KV cache at the end, because a chat reuses it for the next answer.
        self._scheduler = Scheduler(model, free_caches=False)

    def __repr__(self) -> str:
        state = self.sequence.finish_reason or "running"
        text = self.sequence.request.text + self.sequence.text
        end = text if len(text) <= 60 else f"…{text[-59:]}"
        return f"<TextStream of {len(self.sequence.ids)} new tokens, {state}: {end!r}>"

    def _repr_html_(self) -> str:
        """Return the text so far, for notebooks."""
        return self.completion._repr_html_()

    @property
    def running(self) -> bool:
        """Whether the generation is still running."""
        return self.sequence.finish_reason is None

    @property
    def completion(self) -> Completion:
        """The result of the generation so far."""
        sequence, request = self.sequence, self.sequence.request
        options, known = request.options, sequence.prompt_logprobs
        unknown = [None] * (len(request.ids) - len(known))
        return Completion.of(
            request,
            text=sequence.text,
            ids=list(sequence.ids),
            finish_reason=sequence.finish_reason,
            seconds=sequence.seconds,
            logprobs=None if options.logprobs is None else list(sequence.logprobs),
            prompt_logprobs=None if options.prompt_logprobs is None else [*unknown, *known],
            stop_reason=sequence.stop_reason,
        )

    def _reading(self) -> threading.Lock:
        """Return the lock that a reader holds; raise an error if another reader holds it."""
        if self._reader.locked():
            raise InvalidArgumentError(
                "another thread or task is reading this stream; read each stream in one place"
            )
        return self._reader

    def step(self) -> None:
        """Generate one token, or more with draft tokens; `new_text` returns their text.

        Raises:
            InvalidArgumentError: another thread or task is reading the stream.
        """
        with self._reading(), self._state:
            self._step()

    def _step(self) -> None:
        if not self._scheduler.busy:
            self._scheduler.add(self.sequence)
        self._scheduler.step()
        if self.sequence.is_cancelled:  # during the step
            self.sequence.end("cancelled", self.sequence.cancel_error)

    def __next__(self) -> str:
        n_read = None
        try:
            with self._reading(), self._state:
                n_read = self.sequence.n_read
                return self._next_piece()
        except BaseException:  # also Ctrl-C: the caller has not received the piece
            if n_read is not None:
                self.sequence.n_read = n_read
            raise

    def _next_piece(self) -> str:
        while self.running:
            self._step()
            if piece := self.new_text():
                return piece
        if self.sequence.error:
            raise self.sequence.error
        if piece := self.new_text():
            return piece
        raise StopIteration

    async def __aiter__(self) -> AsyncIterator[str]:
        from gpt2np.generation.async_engine import engine_of

        updates = engine_of(self.model).run(self.model, [self.sequence])
        with self._reading(), self._state:
            async with aclosing(updates):
                async for new in updates:
                    for update in filter(lambda update: update.text, new):
                        yield update.text

    def new_text(self) -> str:
        """Return the text added since the last call; may be empty."""
        return self.sequence.new_text()

    def cancel(self) -> str:
        """End the generation; return the text added since the last call of `new_text`.

        If a reader is waiting for the next token, the generation ends after that token. The reader
        then gets the new text, and `cancel` returns "". Later calls have no effect.
        """
        if self.sequence.is_cancelled:
            return ""
        self.sequence.cancel()
        if not self._state.acquire(blocking=False):
            return ""
        try:
            self.sequence.end("cancelled")
            return self.new_text()
        finally:
            self._state.release()
