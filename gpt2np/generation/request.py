"""From a call of `generate` to requests: options, callbacks and constraint once, then each prompt.

call = prepare_call(lm, None, {"max_new_tokens": 20})
requests = [with_prompt(lm, call, prompt) for prompt in prompts]

Logits processors and stopping criteria, the caller's own code in the decode loop, have the
signatures of `transformers`, but for one sequence at a time: ids are a list, and logits an array
(V,).

    def no_digits(ids, logits):  # a logits processor
        logits[digit_ids] = -np.inf
        return logits

    lm.generate("The year was", logits_processor=no_digits)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence, Sized
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from gpt2np.errors import (
    ContextLengthError,
    InvalidArgumentError,
    check_argument,
    errors_about,
    is_integer,
    warn,
)
from gpt2np.generation.drafts import DraftSource
from gpt2np.generation.logits_processors import process_logits
from gpt2np.generation.options import (
    TEXT_CONSTRAINTS,
    GenerationOptions,
    Options,
    check_effect,
    option_fields,
)
from gpt2np.generation.prefix import Prefix
from gpt2np.generation.sampling import TokenLogprob, new_seed
from gpt2np.kernels.array import Array, BoolArray, as_list, real_array
from gpt2np.model import GPT2
from gpt2np.runtime.context import Chain, Hook, as_chain
from gpt2np.tokenizer import Tokenizer

if TYPE_CHECKING:
    from gpt2np.constraints import Constraint

__all__ = ["Callbacks", "GeneratedToken", "LogitsProcessor", "StoppingCriterion"]

Prompt = str | Sequence[int]

LogitsProcessor: TypeAlias = Callable[[list[int], Array], ArrayLike]
"""A function (ids, logits) → logits. `ids` are those of prompt and continuation so far."""

StoppingCriterion: TypeAlias = Callable[[list[int], Array], bool]
"""A function (ids, logits) → whether the sequence ends. `ids` end with the new token's id, which
was selected from `logits`, the unprocessed logits."""


@dataclass(frozen=True)
class GeneratedToken(TokenLogprob):
    """A new token: its id, log probability, text, and the most likely ids at its position.

    `index` is the index of the continuation among all continuations of the call, from 0.
    """

    text: str = ""
    index: int = 0


@dataclass(frozen=True)
class Callbacks:
    """The caller's functions for one sequence, and the caller's constraint.

    The functions are called on the thread that generates; with asyncio, on a thread of the model.

    Attributes:
        logits_processor: functions applied in order, after penalties and constraints of the options
            and before temperature and filters. A token that the options forbid stays forbidden.
        stopping_criteria: functions; if one returns True for a token, the sequence ends there.
        on_token: receives each new token.
        interventions: a hook for all forward passes; see `gpt2np.interp`. If the hook has a method
            `after_prompt`, its return value replaces the hook once the prompt is computed.
        constraint: which tokens may come next; see `gpt2np.constraints.Constraint`.
    """

    logits_processor: tuple[LogitsProcessor, ...] = ()
    stopping_criteria: tuple[StoppingCriterion, ...] = ()
    on_token: Callable[[GeneratedToken], object] | None = None
    interventions: Chain | None = None
    constraint: Constraint | None = None


class GenerateArguments(Options, total=False):
    """The keyword arguments of `LanguageModel.generate`: options, callbacks, a prefix, and
    the special tokens that a text may have.
    """

    logits_processor: LogitsProcessor | Sequence[LogitsProcessor] | None
    stopping_criteria: StoppingCriterion | Sequence[StoppingCriterion] | None
    on_token: Callable[[GeneratedToken], object] | None
    interventions: Hook | Sequence[Hook] | None
    constraint: Constraint | None
    prefix: Prefix | None
    allowed_special: Collection[str] | Literal["all"] | None


@dataclass(frozen=True, eq=False)
class Request:
    """A prompt and how to continue it.

    Attributes:
        ids: token ids of the prompt, including the prefix; without ids, see `prepare_call`.
        options: the options, with the seed set, and with the ids of `bad_words`.
        eos_token_ids: token ids that end a text.
        text: the text of the prompt.
        tokenizer: decodes the new token ids; None if only ids are wanted.
        constraint: the constraint of the options or of the caller, in its initial state.
        callbacks: the caller's functions.
        prefix: the precomputed start of the prompt, if any.
        allowed_special: special tokens of the prompt's text that become single tokens; see
            `LanguageModel.generate`.
        draft_source: makes the drafter of each continuation; None for no draft tokens.
        model_name: the name of the language model.
        index: the index of the continuation among all continuations of the call, from 0.
        n_healed: with token healing, how many bytes of the prompt's text the new tokens repeat.
    """

    ids: Sequence[int]
    options: GenerationOptions
    eos_token_ids: Collection[int] = ()
    _: KW_ONLY
    text: str = ""
    tokenizer: Tokenizer | None = None
    constraint: Constraint | None = None
    callbacks: Callbacks = field(default_factory=Callbacks)
    prefix: Prefix | None = None
    allowed_special: Any = None
    draft_source: DraftSource | None = None
    model_name: str = "model"
    index: int = 0
    n_healed: int = 0

    def process(self, logits: Array, new_ids: Sequence[int], allowed: BoolArray | None) -> Array:
        """Apply the options, a constraint's mask and the caller's logits processors to logits (V,).

        The logits follow the prompt and `new_ids`.

        Raises the errors of `process_logits`, and:
            InvalidArgumentError: a processor does not return real numbers of the shape (V,), or the
                logits of the allowed tokens have NaN or +inf, or are all -inf.
        """
        ends = self.eos_token_ids
        logits = process_logits(logits, self.options, self.ids, new_ids, ends, allowed)
        if not self.callbacks.logits_processor:
            return logits
        is_forbidden = np.isneginf(logits)
        try:
            for processor in self.callbacks.logits_processor:
                logits = real_array(processor([*self.ids, *new_ids], logits.copy()), logits)
            logits = np.where(is_forbidden, -np.inf, logits)
            if not np.isfinite(logits.max()):
                raise ValueError(f"{logits.max()} as the highest logit of an allowed token")
        except ValueError as error:
            message = f"a logits_processor must return logits of shape {logits.shape}; got: {error}"
            raise InvalidArgumentError(message, param="logits_processor") from error
        return logits


class AnyLanguageModel(Protocol):
    """What a request needs of a `LanguageModel`."""

    name: str
    model: GPT2
    tokenizer: Tokenizer
    defaults: GenerationOptions
    eos_token_ids: frozenset[int]
    bos_token_id: int | None
    draft_source: DraftSource


def prepare_call(
    lm: AnyLanguageModel, options: GenerationOptions | None, arguments: Any
) -> Request:
    """Resolve the keyword arguments of `LanguageModel.generate` to a request without a prompt.

    Raises:
        InvalidArgumentError: an argument is out of its range, or two contradict each other.
        TypeError: an option does not exist.
    """
    given: dict[str, Any] = dict(arguments)
    prefix, allowed_special = given.pop("prefix", None), given.pop("allowed_special", None)
    callbacks = take_callbacks(given)
    resolved = resolve_options(lm.defaults if options is None else options, given)
    _check_callbacks(resolved, callbacks)
    resolved = _encode_bad_words(lm.tokenizer, resolved)
    has_draft = resolved.draft == "auto" and resolved.max_new_tokens > 1
    return Request(
        (),
        resolved,
        lm.eos_token_ids,
        tokenizer=lm.tokenizer,
        constraint=_constraint(lm, resolved, callbacks.constraint),
        callbacks=callbacks,
        prefix=prefix,
        allowed_special=allowed_special,
        draft_source=lm.draft_source
        if has_draft and resolved.num_beams == 1 and not callbacks.interventions
        else None,
        model_name=lm.name,
    )


def with_prompt(lm: AnyLanguageModel, call: Request, prompt: Prompt, n_before: int = 0) -> Request:
    """Return the request for a prompt, which follows `n_before` continuations of the same call.

    Raises:
        ContextLengthError: the prompt is longer than the model's context.
        InvalidArgumentError: the prompt is neither text nor token ids.
    """
    options = call.options.with_seed((call.options.seed or 0) + n_before)
    text, ids = _read_prompt(lm, prompt, call)
    tokens_left = min(options.max_new_tokens, lm.model.config.n_positions + 1 - len(ids))
    within = getattr(call.constraint, "within", None)
    # A prompt that leaves no room is an error later.
    constraint, n_healed = within(tokens_left) if within and tokens_left > 0 else call.constraint, 0
    if options.token_healing:
        from gpt2np.generation.token_healing import heal

        ids, healing = heal(lm.tokenizer, ids, lm.bos_token_id, lm.model.config.vocab_size)
        constraint, n_healed = healing, len(healing.text) if healing else 0
    prompted = replace(call, ids=ids, text=text, constraint=constraint, n_healed=n_healed)
    return replace(prompted, options=options, index=n_before)


def resolve_options(base: GenerationOptions, changes: dict[str, Any]) -> GenerationOptions:
    """Return `base` with `changes`, and with a seed; see `LanguageModel.resolve_options`."""
    given = option_fields(changes)  # type: ignore[arg-type]
    expected = "a GenerationOptions, or keyword arguments such as max_new_tokens=50"
    check_argument(isinstance(base, GenerationOptions), "options", base, expected)
    if given.get("num_beams", 1) != 1:
        given.setdefault("temperature", 0.0)
    elif given.get("temperature"):
        given.setdefault("num_beams", 1)
    resolved = replace(base, **given)
    check_effect(given, resolved)
    return resolved if resolved.seed is not None else resolved.with_seed(new_seed())


def take_callbacks(arguments: dict[str, Any]) -> Callbacks:
    """Remove the caller's functions and constraint from the arguments of a call, and check them."""
    on_token, constraint = arguments.pop("on_token", None), arguments.pop("constraint", None)
    check_argument(on_token is None or callable(on_token), "on_token", on_token, "a function")
    is_constraint = constraint is None or hasattr(constraint, "allowed")
    expected = "an object with allowed(), advance(token_id) and complete"
    check_argument(is_constraint, "constraint", constraint, expected)
    processors, criteria, hooks = (
        _functions(name, arguments.pop(name, None))
        for name in ("logits_processor", "stopping_criteria", "interventions")
    )
    return Callbacks(processors, criteria, on_token, as_chain(hooks) if hooks else None, constraint)


def _functions(name: str, value: Any) -> tuple[Any, ...]:
    """Return the functions in one function, a list of functions or None."""
    if value is None:
        return ()
    functions = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    check_argument(all(map(callable, functions)), name, value, "a function or a list of functions")
    return functions


def _check_callbacks(options: GenerationOptions, callbacks: Callbacks) -> None:
    """Raise InvalidArgumentError if a given callback cannot be combined with an option."""
    pairs = [
        ("interventions", "prompt_logprobs"),
        *(("constraint", name) for name in ("token_healing", *TEXT_CONSTRAINTS)),
        *((name, "num_beams") for name in ("stopping_criteria", "on_token", "interventions")),
    ]
    for name, option in pairs:
        is_default = getattr(options, option) == getattr(GenerationOptions, option)
        if getattr(callbacks, name) and not is_default:
            advice = "set num_beams to 1" if option == "num_beams" else "omit one"
            message = f"{name} cannot be combined with {option}; {advice}"
            raise InvalidArgumentError(message, param=name)


def _encode_bad_words(tokenizer: Tokenizer, options: GenerationOptions) -> GenerationOptions:
    """Add the ids of `bad_words`, with and without a space before each, to `bad_words_ids`."""
    if not options.bad_words:
        return options
    texts: list[str] = []
    for word in options.bad_words:
        if word in tokenizer.special_tokens:
            raise InvalidArgumentError(
                f"bad_words: {word} is a special token, not a text; to forbid it, give "
                "`ignore_eos=True`, or -100 for its id in `logit_bias`",
                param="bad_words",
            )
        texts += [word] if word[0].isspace() else [word, f" {word}"]
    ids = [tuple(tokenizer.encode(text, disallowed_special=())) for text in texts]
    return replace(options, bad_words_ids=(*ids, *options.bad_words_ids))


def _constraint(
    lm: AnyLanguageModel, options: GenerationOptions, constraint: Constraint | None
) -> Constraint | None:
    """Return the constraint of the options, or else the caller's."""
    given = {name: getattr(options, name) for name in TEXT_CONSTRAINTS}
    if not any(given.values()):
        return constraint
    from gpt2np.constraints import text_constraint

    # A stop id that is text, such as "\n", may appear in a match; like a stop string, it then wins.
    special_stops = {*options.stop_token_ids} & {*lm.tokenizer.special_tokens.values()}
    ends = frozenset(lm.eos_token_ids | special_stops)
    with errors_about(next(name for name, value in given.items() if value)):
        return text_constraint(lm.tokenizer, lm.model.config.vocab_size, ends, **given)


def _read_prompt(lm: AnyLanguageModel, prompt: Prompt, call: Request) -> tuple[str, list[int]]:
    """Return the text and token ids of prefix + prompt."""
    prefix = call.prefix
    if prefix is not None:
        check_argument(isinstance(prefix, Prefix), "prefix", prefix, "made by lm.prefix(text)")
        if prefix.model is not lm.model:
            raise InvalidArgumentError("the prefix was computed by another model", param="prefix")
        if isinstance(prompt, Sized) and not len(prompt):
            return prefix.text, prefix.ids
    text, ids = text_and_ids(lm, prompt, call.allowed_special)
    return (prefix.text + text, prefix.ids + ids) if prefix else (text, ids)


def text_and_ids(
    lm: AnyLanguageModel, prompt: Prompt, allowed_special: Any = None
) -> tuple[str, list[int]]:
    """Return the text and token ids of a prompt."""
    if isinstance(prompt, str):
        longest, context = lm.tokenizer.vocabulary.max_token_characters, lm.model.config.n_positions
        if len(prompt) > context * longest:  # encoding takes long
            raise ContextLengthError(
                f"the prompt has {len(prompt):,} characters, at least {len(prompt) // longest:,} "
                f"tokens, and this model's maximum context length is {context} tokens; shorten it"
            )
        return prompt, encode_prompt(lm.tokenizer, prompt, lm.bos_token_id, allowed_special)
    items = as_list(prompt)
    is_list = items is not None and all(map(is_integer, items))
    expected = "a text or a list of ids; for several prompts, call generate_batch"
    check_argument(is_list, "prompt", prompt, expected)
    ids = [int(token_id) for token_id in items or ()]
    decoder = lm.tokenizer.streaming_decoder()
    text = "".join(map(decoder.push, ids)) + decoder.finish()
    return text, ids or encode_prompt(lm.tokenizer, "", lm.bos_token_id)


def encode_prompt(
    tokenizer: Tokenizer, text: str, bos_token_id: int | None, allowed_special: Any = None
) -> list[int]:
    """Encode a prompt; an empty prompt becomes `bos_token_id`, if there is one."""
    ids = tokenizer.encode(text, allowed_special=allowed_special or (), disallowed_special=())
    return ids if ids or bos_token_id is None else [bos_token_id]


def encode_scored(
    tokenizer: Tokenizer, text: Prompt, name: str, allowed_special: Any
) -> Sequence[int]:
    """Encode a text to score, called `name` in errors. Token ids stay as they are."""
    if isinstance(text, str):
        return tokenizer.encode(text, allowed_special=allowed_special or (), disallowed_special=())
    ids = as_list(text)
    is_valid = ids is not None and not any(isinstance(item, str) for item in ids)
    check_argument(is_valid, name, text, "a text or a list of ids")
    return ids or []


def scoring_prefix(
    lm: AnyLanguageModel, ids: Sequence[int], given: list[int], from_end_of_text: bool | None
) -> list[int]:
    """Return the ids before a text to score; see `LanguageModel.score`."""
    if from_end_of_text is None:
        from_end_of_text = not given and not (len(ids) and ids[0] == lm.bos_token_id)
    if not from_end_of_text:
        return given
    if lm.bos_token_id is None:
        raise InvalidArgumentError(
            f"{lm.name} has no end-of-text token to put before a text; set "
            "`from_end_of_text=False`, which leaves the first token unscored",
            param="from_end_of_text",
        )
    return [lm.bos_token_id, *given]


def warn_of_special(tokenizer: Tokenizer, texts: Iterable[object], allowed: Any) -> None:
    """Warn the user of the first special token that is encoded as plain text.

    With `allowed` set, the caller has decided about special tokens, and there is no warning.
    """
    known = tokenizer.special_tokens if allowed is None else ()
    found = [name for text in texts if isinstance(text, str) for name in known if name in text]
    if found:
        warn(
            f"the text has the special token {found[0]}, which is encoded as plain text; to "
            'encode it as one token, set `allowed_special="all"`'
        )
