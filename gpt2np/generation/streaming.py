"""A text that is being generated, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpt2np.generation import (
    FinishReason,
    GenerationOptions,
    Scheduler,
    StopStrings,
    decode_step,
)
from gpt2np.generation.sequence import RunningSequence, start_sequence
from gpt2np.model import GPT2
from gpt2np.tokenizer import Tokenizer

if TYPE_CHECKING:
    from gpt2np.generation.logprobs import TokenLogprob
    from gpt2np.language_model import LanguageModel


@dataclass(frozen=True)
class Completion:
    """What came of a prompt.

    Attributes:
        prompt: the text that was continued.
        prompt_ids: its ids; for an empty prompt the end-of-text id.
        text: the continuation, without the prompt and without what stopped it.
        ids: every id that was generated, including an end-of-text and those of a stop string.
        finish_reason: "eos", "stop" (a stop string, expression or id, or all that was asked for is
            there), "length" (max_new_tokens, or the context is full), "cancelled", or None while it
            is still running.
        seed: the seed that gives this continuation again.
        model: the model's name.
        seconds: time from the start of the generation, with the prompt's computation and, in a
            batch, the wait for a place.
        logprobs: what the model said of each of `ids`, if the option `logprobs` asked for it.
        prompt_logprobs: of each of `prompt_ids`, if asked for; None for the first of them, and for
            those that a window left out.
        alternatives: the prompt's other continuations, if several were asked for.
    """

    prompt: str
    prompt_ids: list[int]
    text: str
    ids: list[int]
    finish_reason: FinishReason | None
    seed: int
    model: str
    seconds: float
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    alternatives: tuple[Completion, ...] = ()

    @property
    def tokens_per_second(self) -> float:
        """Generated ids per second, the time for the prompt included."""
        return len(self.ids) / self.seconds if self.seconds else 0.0


class TextSoFar:
    """The text of the ids that have come, in pieces of whole characters, up to where it stops.

    What may be the start of a stop is held back. Joined, the pieces are the text.

    Attributes:
        seconds: from the beginning to the newest id.
    """

    def __init__(
        self, tokenizer: Tokenizer, options: GenerationOptions, silent: Collection[int] = ()
    ) -> None:
        """`silent`: ids that end the text and are no part of it."""
        self._decoder = tokenizer.streaming_decoder()
        self._silent = {*silent, *options.stop_token_ids}
        if options.stop_regex:
            from gpt2np.generation.stop_regex import StopPatterns

            self._stops: StopStrings | StopPatterns
            self._stops = StopPatterns(options.stop, options.stop_regex)
        else:
            self._stops = StopStrings(options.stop)
        self._pieces: list[str] = []
        self._given = 0  # of the pieces, how many have been asked for
        self._started = time.perf_counter()
        self.seconds = 0.0

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._pieces)

    def new(self) -> str:
        """What has become certain since this was last asked, perhaps nothing."""
        given, self._given = self._given, len(self._pieces)
        return "".join(self._pieces[given:])

    def push(self, token_id: int) -> bool:
        """Take an id; whether the text has stopped."""
        self.seconds = time.perf_counter() - self._started
        if token_id not in self._silent:
            self._pieces.append(self._stops.push(self._decoder.push(token_id)))
        return self._stops.found is not None

    def finish(self) -> bool:
        """Let go of what is held, as no more ids come; whether the text has stopped after all."""
        self.seconds = time.perf_counter() - self._started
        if self._stops.found is None:
            self._pieces.append(self._stops.push(self._decoder.finish()))
        if self._stops.found is None:
            self._pieces.append(self._stops.finish())
        return self._stops.found is not None


class TextStream(Iterator[str]):
    """A continuation that is being generated: an iterator over pieces of its text.

    The pieces are whole characters and never part of a stop string; joined they are
    `completion.text`, which can be asked for at any time.

    Attributes:
        sequence: the ids behind it, which a `gpt2np.generation.Scheduler` may run, too.
    """

    def __init__(
        self, lm: LanguageModel, prompt: str, prompt_ids: list[int], options: GenerationOptions
    ) -> None:
        """For callers of `LanguageModel.stream`; `options` must have a seed."""
        self._lm = lm
        self._prompt = prompt
        self._text = TextSoFar(lm.tokenizer, options, lm.eos_token_ids)
        self.sequence: RunningSequence = start_sequence(
            lm.model, prompt_ids, options, lm.eos_token_ids
        )
        self.sequence.listener = self._text

    @property
    def model(self) -> GPT2:
        """The model that writes it."""
        return self._lm.model

    @property
    def running(self) -> bool:
        """Whether more may come."""
        return self.sequence.finish_reason is None

    @property
    def completion(self) -> Completion:
        """What there is so far."""
        sequence, options = self.sequence, self.sequence.options
        return Completion(
            prompt=self._prompt,
            prompt_ids=list(sequence.prompt),
            text=self._text.text,
            ids=list(sequence.ids),
            finish_reason=sequence.finish_reason,
            seed=options.seed or 0,
            model=self._lm.name,
            seconds=self._text.seconds,
            logprobs=None if options.logprobs is None else list(sequence.logprobs),
            prompt_logprobs=None if options.prompt_logprobs is None else self._of_prompt(),
        )

    def step(self) -> None:
        """Go on by an id or more. For those who ask for the text, `new_text`, by themselves."""
        decode_step(self._lm.model, [self.sequence])

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

    def new_text(self) -> str:
        """The text that has become certain since this was last asked, perhaps none."""
        return self._text.new()

    def cancel(self) -> str:
        """End the generation here. Returns the text that has not been given yet."""
        self.sequence.end("cancelled")
        return self.new_text()

    def _of_prompt(self) -> list[TokenLogprob | None]:
        known = self.sequence.prompt_logprobs
        return [*[None] * (len(self.sequence.prompt) - len(known)), *known]


def run_together(streams: Sequence[TextStream]) -> None:
    """Run streams of one model to their ends, as many at once as a Scheduler lets.

    Raises:
        InvalidArgumentError: one of them can't go on, as every token is ruled out. The others have
            come to their ends before it is told.
    """
    if not streams:
        return
    scheduler = Scheduler(streams[0].model)
    for stream in streams:
        scheduler.add(stream.sequence)
    while scheduler.busy:
        scheduler.step()
    for stream in streams:
        if stream.sequence.error:
            raise stream.sequence.error


def together(streams: Sequence[TextStream]) -> Completion:
    """The first of a prompt's continuations, or the best if `best_of` were drawn, with the others.

    The best are those with the highest mean log probability; of equals the first. Those that were
    cancelled before their first id come last.
    """
    options = streams[0].sequence.options
    if options.best_of is not None:
        streams = sorted(streams, key=lambda stream: stream.sequence.mean_logprob, reverse=True)
    first, *others = (stream.completion for stream in streams[: options.num_return_sequences])
    return replace(first, alternatives=tuple(others))
