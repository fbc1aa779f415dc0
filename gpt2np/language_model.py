"""A tokenizer and a GPT-2 held together: text in, text out."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import fields, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from gpt2np.errors import BatchError, CheckpointError, InvalidArgumentError
from gpt2np.generation import (
    GENERATION_CONFIG_FILE,
    GenerationOptions,
    Options,
    new_seed,
    read_generation_config,
)
from gpt2np.generation.prompt import share_prompt
from gpt2np.generation.streaming import Completion, TextSoFar, TextStream, run_together, together
from gpt2np.hub import find_model
from gpt2np.model import GPT2
from gpt2np.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gpt2np.constraints import Constraint
    from gpt2np.generation.scoring import TextScore

__all__ = ["Completion", "LanguageModel", "TextStream"]

Prompt = str | Sequence[int]


class LanguageModel:
    """A GPT-2 with its tokenizer.

        >>> lm = LanguageModel.load("bundled")
        >>> lm.generate("Once upon a time", max_new_tokens=50, seed=1).text

    Attributes:
        name: what to call the model.
        model: ids → logits.
        tokenizer: text ↔ ids.
        defaults: the options where the caller names none.
        eos_token_ids: the ids that end a text.
        bos_token_id: the id that an empty prompt stands for, one that ends a text and that the model
            has a row for; None if there is none.
        fallback_reason: why this is not the model one would expect, None if it is.
        draft: the model that guesses ahead, None without one; see `use_draft`.
    """

    def __init__(
        self,
        model: GPT2,
        tokenizer: Tokenizer,
        *,
        name: str = "model",
        defaults: GenerationOptions | None = None,
        eos_token_ids: frozenset[int] = frozenset(),
        fallback_reason: str | None = None,
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
        self.fallback_reason = fallback_reason
        self.draft: GPT2 | None = None
        ends = [*model.config.eos_token_ids, tokenizer.eos_token_id]
        self.eos_token_ids = eos_token_ids or frozenset(end for end in ends if end is not None)
        rows = range(model.config.vocab_size)
        self.bos_token_id = next(
            (end for end in [*ends[::-1], *self.eos_token_ids] if end in rows), None
        )

    @classmethod
    def load(
        cls,
        model: str | Path | None = None,
        dtype: DTypeLike = np.float32,
        draft: str | Path | None = None,
        processes: int = 1,
    ) -> LanguageModel:
        """Find and load a model: "bundled", a folder, a Hub id, or None for the default.

        The default is GPT-2 small or, where that can't be had, the bundled model, with a warning.
        See `gpt2np.hub.find_model` for what is searched where. dtype: float32 or float64. draft: a
        smaller model for `use_draft`. processes: how many compute together, see `GPT2.processes`.

        Raises:
            ModelNotFoundError, CheckpointError, TokenizerError: see `gpt2np.errors`.
            InvalidArgumentError: the draft model has another vocabulary; fewer than 1 process.
        """
        source = find_model(model)
        if source.fallback_reason:
            warnings.warn(f"the model is {source.name}: {source.fallback_reason}", stacklevel=2)
        config = read_generation_config(source.folder)
        if config.ignored:
            listed = ", ".join(config.ignored)
            told = f"{source.name}: {GENERATION_CONFIG_FILE} sets {listed}, which gpt2np ignores"
            warnings.warn(told, stacklevel=2)
        lm = cls(
            GPT2.from_folder(source.folder, dtype),
            Tokenizer.load(source.folder),
            name=source.name,
            defaults=config.options,
            eos_token_ids=config.eos_token_ids,
            fallback_reason=source.fallback_reason,
        )
        lm.model.processes = processes
        if draft is not None:
            lm.use_draft(cls.load(draft, dtype, processes=processes))
        return lm

    def use_draft(self, draft: LanguageModel) -> None:
        """Let a smaller model guess ahead in every later generation; the results stay the same.

        Raises:
            InvalidArgumentError: its vocabulary is another one.
        """
        if draft.tokenizer.vocabulary.token_bytes != self.tokenizer.vocabulary.token_bytes:
            raise InvalidArgumentError(
                f"the draft model {draft.name} has another vocabulary than {self.name}; it must "
                f"have the same tokens with the same ids"
            )
        self.draft = draft.model

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Completion:
        """Continue one prompt, a text or ids.

        Options: see `GenerationOptions`; `defaults` holds what applies where they are not given,
        except that `num_beams` alone means temperature 0. A prompt's text is always plain text:
        `<|endoftext|>` in it is these 13 characters. An empty prompt starts a new text, from the
        end-of-text id. Of several continuations (samples, best_of, num_beams) this is the first or
        best, and the others are its `alternatives`.

        Raises:
            ContextLengthError: the prompt has more tokens than the model's context.
            InvalidArgumentError: an option out of its range, or a prompt that is neither.
            TypeError: an option that does not exist.
        """
        return self.generate_batch([prompt], **options)[0]

    def generate_batch(
        self,
        prompts: Sequence[Prompt],
        each: Sequence[Options] | None = None,
        **options: Unpack[Options],
    ) -> list[Completion]:
        """Continue several prompts together; each gets what it would get alone.

        The options are those of `generate`, for all prompts; `each` has further ones for every
        prompt, such as [{"seed": 5}, {}, {"stop": "\\n"}]. Seeds are counted on from `seed`, over
        the prompts and the samples drawn for each: prompt i, sample j has `seed + i × samples + j`,
        so that it can be had alone. Sixteen texts run at a time, fewer of large models; others
        follow when they end. Beams are searched prompt by prompt.

        Raises:
            BatchError: a text can't go on, as every token is ruled out. It names the prompt, and
                has the completions of all.
            InvalidArgumentError: see `generate`.
        """
        if isinstance(prompts, str):
            raise InvalidArgumentError("prompts must be a list; for one prompt call generate")
        parts: list[Completion | list[TextStream]] = []
        for prompt, chosen in zip(prompts, self._for_each(prompts, each, options), strict=True):
            if chosen.num_beams > 1:
                parts.append(self._beams(prompt, chosen))
            else:
                parts.append(self._streams(prompt, chosen))
        drawn = [part if isinstance(part, list) else [] for part in parts]
        try:
            run_together([stream for streams in drawn for stream in streams])
        except InvalidArgumentError as error:
            if len(prompts) == 1:
                raise
            failed = [any(stream.sequence.error for stream in streams) for streams in drawn]
            raise BatchError(
                f"prompt {1 + failed.index(True)} of {len(prompts)}: {error}", _completions(parts)
            ) from error
        return _completions(parts)

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> TextStream:
        """Continue one prompt piece by piece: iterate over the result for the text as it grows.

        The options are those of `generate`, without beams and with one sample only.
        """
        streams = self.streams(prompt, **options)
        if len(streams) > 1:
            raise InvalidArgumentError(
                f"{len(streams)} samples can't be one stream; call streams, or generate"
            )
        return streams[0]

    def streams(self, prompt: Prompt, **options: Unpack[Options]) -> list[TextStream]:
        """A stream for each sample, which share the computation of the prompt.

        They may be read in any order, or their sequences run together by a Scheduler.
        """
        alone: Options = {"num_beams": 1, **options}
        chosen = self.options(**alone)
        if chosen.num_beams > 1:
            raise InvalidArgumentError(
                f"num_beams is {chosen.num_beams}: beam search has no text before it ends; call "
                f"generate"
            )
        return self._streams(prompt, chosen)

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
        that begin `stride` ids after each other, see `gpt2np.generation.scoring.score_text`. The first id has
        no probability, NaN, except with `from_end_of_text`, which puts an end-of-text before it.

        Raises:
            InvalidArgumentError: an impossible id, context or stride; no end-of-text where needed.
        """
        from gpt2np.generation.scoring import score_text

        if from_end_of_text and self.bos_token_id is None:
            raise InvalidArgumentError(f"{self.name} has no end-of-text to put before the text")
        ids = self.tokenizer.encode(text, disallowed_special=()) if isinstance(text, str) else text
        before = self.bos_token_id if from_end_of_text else None
        return score_text(self.model, ids, context, stride, before)

    def _streams(self, prompt: Prompt, options: GenerationOptions) -> list[TextStream]:
        text, ids = self._read(prompt)
        options = self._with_word_ids(options)
        streams = [
            TextStream(self, text, ids, replace(options, seed=(options.seed or 0) + number))
            for number in range(options.drawn)
        ]
        constraint = self._constraint(options)
        for stream in streams:
            stream.sequence.constraint = constraint
            if options.prompt_lookup or self.draft:
                from gpt2np.generation.speculate import Speculation

                draft = None if options.prompt_lookup else self.draft
                stream.sequence.speculation = Speculation(self.model, draft)
        share_prompt([stream.sequence for stream in streams])
        return streams

    def _beams(self, prompt: Prompt, options: GenerationOptions) -> Completion:
        from gpt2np.generation.beam_texts import searched

        text, ids = self._read(prompt)
        options = self._with_word_ids(options)
        return searched(self, text, ids, options, self._constraint(options))

    def _constraint(self, options: GenerationOptions) -> Constraint | None:
        if not options.choices and options.regex is None:
            return None
        from gpt2np.constraints import text_constraint

        tokens, special = self.tokenizer.vocabulary.token_bytes, self.tokenizer.special_tokens
        size = self.model.config.vocab_size
        return text_constraint(
            options, tokens, size, self.eos_token_ids, frozenset(special.values())
        )

    def _read(self, prompt: Prompt) -> tuple[str, list[int]]:
        """A prompt's text and ids."""
        if isinstance(prompt, str):
            text, ids = prompt, self.tokenizer.encode(prompt, disallowed_special=())
        elif isinstance(prompt, bytes) or not _are_ids(prompt):
            raise InvalidArgumentError("a prompt must be a text or a list of ids")
        else:
            ids = [int(number) for number in prompt]
            whole = TextSoFar(self.tokenizer, GenerationOptions())
            for number in ids:
                whole.push(number)
            whole.finish()
            text = whole.text
        if not ids and self.bos_token_id is not None:
            ids = [self.bos_token_id]
        return text, ids

    def _with_word_ids(self, options: GenerationOptions) -> GenerationOptions:
        """The options with the texts among `bad_words` as ids, as they stand and after a space."""
        words: list[tuple[int, ...]] = []
        for word in options.bad_words:
            if isinstance(word, str):
                texts = [word] if word[0].isspace() else [word, " " + word]
                words += [tuple(self.tokenizer.encode(t, disallowed_special=())) for t in texts]
            else:
                words.append(word)
        return replace(options, bad_words=tuple(words)) if words else options

    def _for_each(
        self, prompts: Sequence[Prompt], each: Sequence[Options] | None, options: Options
    ) -> list[GenerationOptions]:
        """Each prompt's options, with seeds that are counted on."""
        own: Sequence[Options] = [Options() for _ in prompts] if each is None else each
        if len(own) != len(prompts):
            raise InvalidArgumentError(f"{len(prompts)} prompts with {len(own)} sets of options")
        seed, chosen = self.options(**options).seed or 0, []
        for further in own:
            given: Options = {**options, "seed": seed, **further}
            chosen.append(self.options(**given))
            seed += chosen[-1].drawn
        return chosen

    def options(self, **options: Unpack[Options]) -> GenerationOptions:
        """What `generate` makes of options: with the defaults where none are given, and a seed.

        Beams mean temperature 0, where no temperature is given, and a temperature no beams.

        Raises:
            InvalidArgumentError, TypeError: see `generate`.
        """
        known = [field.name for field in fields(GenerationOptions)]
        if unknown := sorted(set(options) - set(known)):
            raise TypeError(f"there is no option {unknown[0]!r}; there are {', '.join(known)}")
        given: dict[str, Any] = dict(options)
        if given.get("num_beams", 1) != 1:
            given.setdefault("temperature", 0.0)
        elif given.get("temperature") or given.get("best_of"):
            given.setdefault("num_beams", 1)
        chosen = replace(self.defaults, **given)
        if chosen.seed is None:
            chosen = replace(chosen, seed=new_seed())
        return chosen


def _completions(parts: list[Completion | list[TextStream]]) -> list[Completion]:
    return [part if isinstance(part, Completion) else together(part) for part in parts]


def _are_ids(prompt: Sequence[int]) -> bool:
    is_list = isinstance(prompt, (Sequence, np.ndarray))
    return is_list and all(isinstance(number, Integral) for number in prompt)
