"""From the arguments of `generate` to a request: a prompt with all that its generation needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from gpt2np.errors import InvalidArgumentError, check_argument
from gpt2np.generation.callbacks import Callbacks, GenerateArguments
from gpt2np.generation.logits_processors import TokenHistory, process_logits
from gpt2np.generation.options import (
    GenerationOptions,
    Options,
    check_effect,
    option_fields,
)
from gpt2np.generation.sampling import new_seed
from gpt2np.kernels.array import Array
from gpt2np.runtime.hooked_context import Chain

if TYPE_CHECKING:
    from gpt2np.constraints import Constraint
    from gpt2np.generation.model_draft import ModelDraft
    from gpt2np.generation.ngram_draft import NgramDraft
    from gpt2np.generation.prefix import Prefix
    from gpt2np.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class Request:
    """A prompt and how to continue it; `LanguageModel.request` makes one.

    Only `LanguageModel` resolves defaults and encodes texts. `complete`, `start_streams` and
    `beam_completion` need only a model and a request.

    Attributes:
        ids: token ids of the prompt, including the prefix; at least one.
        options: the options, with the seed set, and with the ids of `bad_words`.
        eos_token_ids: token ids that end a text.
        text: the text of the prompt.
        tokenizer: decodes the new token ids; None if only ids are wanted.
        constraint: the constraint of the options or of the caller, in its initial state.
        callbacks: the caller's functions.
        prefix: the precomputed start of the prompt, if any.
        new_draft: makes the source of draft tokens of one continuation; None for no draft tokens.
        model_name: the name of the language model.
        index: the index of the continuation among all continuations of the call, from 0.
        n_healed: with token healing, how many bytes of the prompt's text the new tokens repeat.
    """

    ids: Sequence[int]
    options: GenerationOptions
    eos_token_ids: Collection[int] = ()
    text: str = ""
    tokenizer: Tokenizer | None = None
    constraint: Constraint | None = None
    callbacks: Callbacks = field(default_factory=Callbacks)
    prefix: Prefix | None = None
    new_draft: Callable[[], NgramDraft | ModelDraft | None] | None = None
    model_name: str = "model"
    index: int = 0
    n_healed: int = 0

    def process(
        self, logits: Array, history: TokenHistory, constraint: Constraint | None = None
    ) -> Array:
        """Apply the options, a constraint and the caller's logits processors to logits (V,).

        Raises the errors of `process_logits` and `Callbacks.process`.
        """
        logits = process_logits(logits, self.options, history, self.eos_token_ids, constraint)
        if self.callbacks.logits_processor:
            logits = self.callbacks.process([*history.prompt, *history.generated], logits)
        return logits

    def continuations(self) -> list[Request]:
        """Return one request per continuation, with consecutive seeds and indices."""
        seed = self.options.seed or 0
        return [
            replace(self, options=self.options.with_seed(seed + i), index=self.index + i)
            for i in range(self.options.n_drawn)
        ]


def resolve_options(base: GenerationOptions, changes: Options) -> GenerationOptions:
    """Return `base` with `changes`, and with a seed; see `LanguageModel.resolve_options`."""
    given = option_fields(changes)
    expected = "a GenerationOptions, or keyword arguments such as max_new_tokens=50"
    check_argument(isinstance(base, GenerationOptions), "options", base, expected)
    if changes.get("do_sample") and not base.temperature:
        given.setdefault("temperature", GenerationOptions().temperature)
    if given.get("num_beams", 1) != 1:
        if changes.get("do_sample"):
            raise InvalidArgumentError(
                f"num_beams={given['num_beams']} and do_sample=True contradict each other: beam "
                "search does not sample",
                param="num_beams",
            )
        given.setdefault("temperature", 0.0)
    elif given.get("temperature") or given.get("best_of"):
        given.setdefault("num_beams", 1)
    resolved = replace(base, **given)
    check_effect(given, resolved)
    return resolved if resolved.seed is not None else resolved.with_seed(new_seed())


def split_arguments(arguments: GenerateArguments) -> tuple[Options, Callbacks, Prefix | None]:
    """Split the arguments of `LanguageModel.generate` into options, callbacks and prefix.

    Checks that callbacks are functions, and that a constraint has its members.
    """
    options: dict[str, Any] = dict(arguments)
    prefix = options.pop("prefix", None)
    on_token, constraint = options.pop("on_token", None), options.pop("constraint", None)
    check_argument(on_token is None or callable(on_token), "on_token", on_token, "a function")
    if constraint is not None:
        from gpt2np.constraints import Constraint

        expected = "an object with allowed(), advance(token_id) and complete"
        check_argument(isinstance(constraint, Constraint), "constraint", constraint, expected)
    processors, criteria, hooks = (
        _functions(name, options.pop(name, None))
        for name in ("logits_processor", "stopping_criteria", "interventions")
    )
    interventions = Chain(hooks) if hooks else None
    callbacks = Callbacks(processors, criteria, on_token, interventions, constraint)
    return cast(Options, options), callbacks, prefix


def _functions(name: str, value: Any) -> tuple[Any, ...]:
    """Check one function, a list of functions or None. Returns a tuple."""
    if value is None:
        return ()
    functions = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    expected = "a function or a list of functions"
    check_argument(all(map(callable, functions)), name, value, expected)
    return functions
