"""A tokenizer and a GPT-2 held together: text in, text out."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import DTypeLike

from gpt2np.errors import CheckpointError, InvalidArgumentError
from gpt2np.generation import (
    GENERATION_CONFIG_FILE,
    FinishReason,
    GenerationOptions,
    RunningSequence,
    StopStrings,
    decode_step,
    read_generation_config,
    start_sequence,
)
from gpt2np.hub import find_model
from gpt2np.model import GPT2
from gpt2np.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gpt2np.scoring import TextScore

Prompt = str | Sequence[int]


class Options(TypedDict, total=False):
    """The keyword arguments of `LanguageModel.generate`: see `GenerationOptions`."""

    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int | None
    stop: str | Sequence[str]


@dataclass(frozen=True)
class Completion:
    """What came of a prompt.

    Attributes:
        prompt: the text that was continued.
        prompt_ids: its ids; for an empty prompt the end-of-text id.
        text: the continuation, without the prompt and without a stop string.
        ids: every id that was generated, including an end-of-text and those of a stop string.
        finish_reason: "eos", "stop" (a stop string), "length" (max_new_tokens, or the context is
            full), "cancelled", or None while it is still running.
        seed: the seed that gives this continuation again.
        model: the model's name.
        seconds: time from the start of the generation, the prompt's computation included.
    """

    prompt: str
    prompt_ids: list[int]
    text: str
    ids: list[int]
    finish_reason: FinishReason | None
    seed: int
    model: str
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Generated ids per second, the time for the prompt included."""
        return len(self.ids) / self.seconds if self.seconds else 0.0


class LanguageModel:
    """A GPT-2 with its tokenizer.

        >>> lm = LanguageModel.load("bundled")
        >>> lm.generate("Once upon a time", max_new_tokens=50, seed=1).text

    Attributes:
        name: what to call the model.
        model: ids → logits.
        tokenizer: text ↔ ids.
        defaults: the options where the caller names none.
        end_ids: the ids that end a text.
        begin_id: the id that an empty prompt stands for, one that ends a text and that the model
            has a row for; None if there is none.
        notice: why this is not the model one would expect, None if it is.
    """

    def __init__(
        self,
        model: GPT2,
        tokenizer: Tokenizer,
        *,
        name: str = "model",
        defaults: GenerationOptions | None = None,
        end_ids: frozenset[int] = frozenset(),
        notice: str | None = None,
    ) -> None:
        if tokenizer.vocabulary.ids_of_texts > model.config.vocab_size:
            raise CheckpointError(
                f"{name}: the vocabulary has {tokenizer.vocab_size} tokens, but the model only "
                f"{model.config.vocab_size}; the files must come from the same model"
            )
        self.name = name
        self.model = model
        self.tokenizer = tokenizer
        self.defaults = defaults or GenerationOptions()
        self.notice = notice
        ends = [*model.config.eos_token_ids, tokenizer.end_of_text]
        self.end_ids = end_ids or frozenset(end for end in ends if end is not None)
        rows = range(model.config.vocab_size)
        self.begin_id = next((end for end in [*ends[::-1], *self.end_ids] if end in rows), None)

    @classmethod
    def load(cls, model: str | Path | None = None, dtype: DTypeLike = np.float32) -> LanguageModel:
        """Find and load a model: "bundled", a folder, a Hub id, or None for the default.

        The default is GPT-2 small or, where that can't be had, the bundled model, with a warning.
        See `gpt2np.hub.find_model` for what is searched where. dtype: float32 or float64.

        Raises:
            ModelNotFoundError, CheckpointError, TokenizerError: see `gpt2np.errors`.
        """
        source = find_model(model)
        if source.notice:
            warnings.warn(f"the model is {source.name}: {source.notice}", stacklevel=2)
        config = read_generation_config(source.folder)
        if config.ignored:
            listed = ", ".join(config.ignored)
            told = f"{source.name}: {GENERATION_CONFIG_FILE} sets {listed}, which gpt2np ignores"
            warnings.warn(told, stacklevel=2)
        return cls(
            GPT2.from_folder(source.folder, dtype),
            Tokenizer.load(source.folder),
            name=source.name,
            defaults=config.options,
            end_ids=config.end_ids,
            notice=source.notice,
        )

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Completion:
        """Continue one prompt, a text or ids.

        Options: max_new_tokens, temperature (0 is greedy), top_k, top_p, seed and stop, see
        `GenerationOptions`; `defaults` holds what applies where they are not given. A prompt's text
        is always plain text: `<|endoftext|>` in it is these 13 characters. An empty prompt starts a
        new text, from the end-of-text id.

        Raises:
            ContextLengthError: the prompt has more tokens than the model's context.
            InvalidArgumentError: an option out of its range, or a prompt that is neither.
            TypeError: an option that does not exist.
        """
        stream = self.stream(prompt, **options)
        for _ in stream:
            pass
        return stream.completion

    def generate_batch(
        self, prompts: Sequence[Prompt], **options: Unpack[Options]
    ) -> list[Completion]:
        """Continue several prompts together; each gets what it would get alone.

        Prompt number i, from 0, has the seed `seed + i`, so that its completion can be had alone.
        The options are those of `generate`.
        """
        if isinstance(prompts, str):
            raise InvalidArgumentError("prompts must be a list; for one prompt call generate")
        chosen = self._chosen(options)
        seed = chosen.seed or 0
        streams = [
            TextStream(self, prompt, replace(chosen, seed=seed + i))
            for i, prompt in enumerate(prompts)
        ]
        while running := [stream for stream in streams if stream.running]:
            decode_step(self.model, [stream.sequence for stream in running])
            for stream in running:
                stream.take_newest()
        return [stream.completion for stream in streams]

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> TextStream:
        """Continue one prompt piece by piece: iterate over the result for the text as it grows.

        The options are those of `generate`.
        """
        return TextStream(self, prompt, self._chosen(options))

    def score(
        self,
        text: Prompt,
        *,
        context: int | None = None,
        stride: int | None = None,
        from_end_of_text: bool = False,
    ) -> TextScore:
        """How probable each id of a text, or of ids, is after those before it.

        A text is plain text, as in `generate`. What is longer than `context` ids is read in windows
        that begin `stride` ids after each other, see `gpt2np.scoring.score_text`. The first id has
        no probability, NaN, except with `from_end_of_text`, which puts an end-of-text before it.

        Raises:
            InvalidArgumentError: an impossible id, context or stride; no end-of-text where needed.
        """
        from gpt2np.scoring import score_text

        if from_end_of_text and self.begin_id is None:
            raise InvalidArgumentError(f"{self.name} has no end-of-text to put before the text")
        ids = self.tokenizer.encode(text, disallowed_special=()) if isinstance(text, str) else text
        before = self.begin_id if from_end_of_text else None
        return score_text(self.model, ids, context, stride, before)

    def _chosen(self, options: Options) -> GenerationOptions:
        """The options with the defaults where none are given, and with a seed."""
        known = [field.name for field in fields(GenerationOptions)]
        if unknown := sorted(set(options) - set(known)):
            raise TypeError(f"there is no option {unknown[0]!r}; there are {', '.join(known)}")
        given: dict[str, Any] = dict(options)
        chosen = replace(self.defaults, **given)
        if chosen.seed is None:
            chosen = replace(chosen, seed=int(np.random.SeedSequence().generate_state(1)[0]))
        return chosen


class TextStream(Iterator[str]):
    """A continuation that is being generated: an iterator over pieces of its text.

    The pieces are whole characters and never part of a stop string; joined they are
    `completion.text`, which can be asked for at any time.
    """

    def __init__(self, lm: LanguageModel, prompt: Prompt, options: GenerationOptions) -> None:
        self._lm = lm
        if isinstance(prompt, str):
            self._prompt = prompt
            prompt_ids = lm.tokenizer.encode(prompt, disallowed_special=())
        elif isinstance(prompt, bytes) or not _are_ids(prompt):
            raise InvalidArgumentError("a prompt must be a text or a list of ids")
        else:
            decoder, prompt_ids = lm.tokenizer.streaming_decoder(), [int(i) for i in prompt]
            pieces = [decoder.push(number) for number in prompt_ids]
            self._prompt = "".join([*pieces, decoder.finish()])
        if not prompt_ids and lm.begin_id is not None:
            prompt_ids = [lm.begin_id]
        self.sequence: RunningSequence = start_sequence(lm.model, prompt_ids, options, lm.end_ids)
        self._decoder = lm.tokenizer.streaming_decoder()
        self._stops = StopStrings(options.stop)
        self._pieces: list[str] = []
        self._taken = 0  # of the sequence's ids, how many are in the pieces
        self._started = time.perf_counter()
        self._seconds = 0.0

    @property
    def running(self) -> bool:
        """Whether more may come."""
        return self.sequence.finish_reason is None

    @property
    def completion(self) -> Completion:
        """What there is so far."""
        sequence = self.sequence
        return Completion(
            prompt=self._prompt,
            prompt_ids=list(sequence.prompt),
            text="".join(self._pieces),
            ids=list(sequence.ids),
            finish_reason=sequence.finish_reason,
            seed=sequence.options.seed or 0,
            model=self._lm.name,
            seconds=self._seconds,
        )

    def __next__(self) -> str:
        while self.running:
            decode_step(self._lm.model, [self.sequence])
            if piece := self.take_newest():
                return piece
        raise StopIteration

    def take_newest(self) -> str:
        """The text that has become certain with the sequence's newest ids, perhaps none."""
        newest = self.sequence.ids[self._taken :]
        self._taken += len(newest)
        text = "".join([self._decoder.push(i) for i in newest if i not in self._lm.end_ids])
        piece = self._stops.push(text)
        if not self.running and not self._stops.found:
            piece += self._stops.push(self._decoder.finish())
        if self._stops.found:
            self.sequence.finish_reason = "stop"
        elif not self.running:
            piece += self._stops.finish()
        self._pieces.append(piece)
        self._seconds = time.perf_counter() - self._started
        return piece

    def cancel(self) -> str:
        """End the generation here. Returns the text that was still held back."""
        if self.running:
            self.sequence.finish_reason = "cancelled"
        return self.take_newest()


def _are_ids(prompt: Sequence[int]) -> bool:
    is_list = isinstance(prompt, (Sequence, np.ndarray))
    return is_list and all(isinstance(number, Integral) for number in prompt)
