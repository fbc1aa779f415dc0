"""Generation options: their declarations, and checks of their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any, Literal, TypedDict

from gpt2np.errors import InvalidArgumentError, did_you_mean, is_integer
from gpt2np.limits import how_to_raise, limits, variable
from gpt2np.options import (
    Flag,
    Integer,
    Number,
    OneOf,
    Range,
    Text,
    Texts,
    attributes_text,
    check_no_array,
    check_options,
    is_number,
    option,
    options_of,
)

EarlyStopping = bool | Literal["never"]
Draft = Literal["auto", "none"]


class Options(TypedDict, total=False):
    """The keyword arguments of `LanguageModel.generate`; see `GenerationOptions`.

    `stop_strings` and `do_sample` mean the same as in `transformers`.
    """

    stop_strings: str | Sequence[str]
    do_sample: bool

    token_healing: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    seed: int | None
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    no_repeat_ngram_size: int
    logit_bias: Mapping[int, float]
    bad_words: Sequence[str]
    bad_words_ids: Sequence[Sequence[int]]
    max_new_tokens: int
    min_new_tokens: int
    max_time: float | None
    ignore_eos: bool
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    stop_regex: str | Sequence[str]
    window: int
    num_beams: int
    length_penalty: float
    early_stopping: EarlyStopping
    draft: Draft
    choices: Sequence[str]
    regex: str | None
    json_schema: Mapping[str, Any] | str | PathLike[str] | None
    num_return_sequences: int
    best_of: int | None
    logprobs: int | None
    prompt_logprobs: int | None


_OTHER_ARGUMENTS = (  # of `generate`
    *("logits_processor", "stopping_criteria", "on_token", "interventions", "constraint", "prefix"),
)

ADVICE = {
    "max_length": "it would count the prompt's tokens, too; give max_new_tokens",
    "greedy": "give temperature=0",
    "device": "gpt2np computes on CPUs only",
    "streamer": "call stream, which yields the pieces of the text",
    "min_length": "it would count the prompt's tokens, too; give min_new_tokens",
    "use_cache": "the KV cache is always used",
    "assistant_model": "give draft to gpt2np.load",
    "prompt_lookup_num_tokens": "draft='auto', the default, drafts from the text so far",
    "return_full_text": "the result has .prompt and .text",
    "temp": "give temperature",
    **dict.fromkeys(
        ("attention_mask", "pad_token_id"), "a batch is a list of prompts of any lengths"
    ),
    **dict.fromkeys(("output_scores", "output_logits"), "give logprobs, or call gpt2np.trace"),
    "force_words_ids": "give regex, as in '.*fox.*'",
    "suppress_tokens": "give bad_words_ids or logit_bias",
    "penalty_alpha": "gpt2np has no contrastive search",
    "grammar": "give regex or json_schema",
    "response_format": "give json_schema",
    "include_stop_str_in_output": r'to keep a period, set stop_regex=r"(?<=\.)"',
    "guided_choice": "give choices",
    **dict.fromkeys(("allowed_words", "allowed_token_ids"), "give regex or constraint"),
    "guided_json": "give json_schema",
    "guided_regex": "give regex",
    "stop_sequences": "give stop",
    **dict.fromkeys(("n_predict", "num_predict"), "give max_new_tokens"),
    **dict.fromkeys(("n", "num_samples", "samples"), "give num_return_sequences"),
}
"""Options of other libraries, and what to give instead."""


def option_fields(options: Options) -> dict[str, Any]:
    """Convert the keyword arguments of `generate` to those of `GenerationOptions`.

    `stop_strings` becomes `stop`, and `do_sample=False` becomes `temperature=0.0`.

    Raises:
        InvalidArgumentError: an alias contradicts another option, or a value is an array.
        TypeError: an option does not exist.
    """
    given: dict[str, Any] = dict(options)
    for name, value in given.items():
        check_no_array(name, value)
    if "stop_strings" in given:
        if "stop" in given:
            raise InvalidArgumentError(
                "{stop} and {stop_strings} mean the same; give one",
                stop=given["stop"],
                stop_strings=given["stop_strings"],
            )
        given["stop"] = given.pop("stop_strings")
    if (do_sample := given.pop("do_sample", None)) is not None:
        Flag().check("do_sample", do_sample)
        temperature = given.get("temperature")
        if temperature is not None and bool(temperature) != do_sample:
            raise InvalidArgumentError(
                "{do_sample} is {do_sample.value} and {temperature} {temperature.value}: "
                "{temperature} 0 is greedy, and above 0 samples; give one",
                do_sample=do_sample,
                temperature=temperature,
            )
        if not do_sample:
            given["temperature"] = 0.0
    names = list(options_of(GenerationOptions))
    if unknown := sorted(set(given) - set(names)):
        name = unknown[0]
        hint = did_you_mean(name, [*Options.__annotations__, *_OTHER_ARGUMENTS], ADVICE)
        hint = hint or f"; there are {', '.join(names)}"
        raise TypeError(f"there is no option {name!r}{hint}")
    return given


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _is_id(value: Any) -> bool:
    return is_integer(value) and bool(value >= 0)


class Ids(Range):
    """A list of token ids."""

    metavar = "ID"
    item_type = int
    noun = "a list of ids, integers from 0"

    def is_valid(self, value: Any) -> bool:
        return _is_list(value) and all(map(_is_id, value))

    def normalize(self, value: Any) -> Any:
        return tuple(map(int, value))


class IdLists(Range):
    """A list of lists of token ids."""

    noun = "a list of non-empty lists of ids, as in [[5], [6, 7]]"

    def is_valid(self, value: Any) -> bool:
        return _is_list(value) and all(Ids().is_valid(word) and word for word in value)

    def normalize(self, value: Any) -> Any:
        return tuple(tuple(map(int, word)) for word in value)


class Biases(Range):
    """A mapping from token ids to numbers, or the pairs; ids may be strings, like keys in JSON."""

    metavar = "ID=X"
    noun = 'token ids, each with a number from -10000 to 10000, as in {7: -5} or {"7": -5}'

    def is_valid(self, value: Any) -> bool:
        def is_key(key: Any) -> bool:
            is_digits = isinstance(key, str) and key.isascii() and key.isdecimal()
            return (is_digits and len(key) < 20) or _is_id(key)

        pairs = tuple(value.items()) if isinstance(value, Mapping) else value
        return isinstance(pairs, tuple) and all(
            _is_list(pair)
            and len(pair) == 2
            and is_key(pair[0])
            and is_number(pair[1])
            and abs(pair[1]) <= 10_000
            for pair in pairs
        )

    def normalize(self, value: Any) -> Any:
        pairs = value.items() if isinstance(value, Mapping) else value
        return tuple((int(token_id), float(bias)) for token_id, bias in pairs)


class Choices(Texts):
    """Texts, limited in number and size before they take memory."""

    def check(self, name: str, value: Any) -> Any:
        if _is_list(value):
            limit = limits().max_choices_characters
            if len(value) > limit or sum(len(t) for t in value if isinstance(t, str)) > limit:
                raise InvalidArgumentError(
                    f"{{choices}} have more than {limit:,} characters; give fewer or shorter "
                    f"texts, or set {variable('max_choices_characters')}",
                    choices=value,
                )
            if isinstance(value, list) and not value:  # () is the default
                raise InvalidArgumentError(
                    "{choices} is an empty list; give at least one text", choices=value
                )
        return super().check(name, value)


class Patterns(Texts):
    """Untrusted regular expressions."""

    def normalize(self, value: Any) -> Any:
        patterns: tuple[str, ...] = super().normalize(value)
        if patterns:
            from gpt2np.data.untrusted_regex import check_sizes
            from gpt2np.generation.stop_regex import compile_stop_regex

            check_sizes(patterns, "stop_regex")
            for pattern in patterns:
                compile_stop_regex(pattern)
        return patterns


class JsonSchema(Text):
    """A JSON Schema: a dict, JSON text, or the path of a file; in normal form, JSON text."""

    metavar = "FILE"
    noun = "a JSON Schema, given as a dict, as JSON text or as the path of a file"

    def is_valid(self, value: Any) -> bool:
        return isinstance(value, (Mapping, PathLike)) or super().is_valid(value)

    def normalize(self, value: Any) -> Any:
        import json

        from gpt2np.data.files import as_path, read_json_object

        try:
            if isinstance(value, str) and value.lstrip().startswith("{"):
                value = json.loads(value)
            elif not isinstance(value, Mapping):
                path, most = as_path(value), limits().max_config_bytes
                value = read_json_object(path, InvalidArgumentError, max_bytes=most)
            text = json.dumps(dict(value), ensure_ascii=False, allow_nan=False)
            text.encode()  # refuses lone surrogates
        except (TypeError, ValueError, RecursionError) as error:
            if isinstance(error, InvalidArgumentError):
                raise
            raise InvalidArgumentError(
                "{json_schema} is not JSON: {0}", error, json_schema=value
            ) from error
        if len(text) > limits().max_schema_characters:
            raise InvalidArgumentError(
                f"{{json_schema}} has {len(text):,} characters; "
                f"{how_to_raise('max_schema_characters')}",
                json_schema=value,
            )
        return text


_PROBABILITY = Number(0, 1, is_open=True)

_sampling = partial(option, group="Sampling", is_model_default=True)
_beam_search = partial(option, group="Beam search", is_model_default=True)
_penalty = partial(option, group="Penalties")
_stopping = partial(option, group="Stopping")
_constraint = partial(option, group="Constraints")
_output = partial(option, group="Output")


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """The options that say how to continue a prompt.

    Immutable, so threads can share them. Log probabilities come from the unprocessed logits, before
    penalties, filters and temperature.

    Raises:
        InvalidArgumentError: a value is out of its range, or two values contradict each other.
    """

    token_healing: bool = option(
        False,
        Flag(),
        "Drop the end of the prompt that begins a longer token, and generate it again with what "
        "follows; for a prompt that ends in a space or within a word",
        details="See `gpt2np.generation.token_healing`.",
        group="Prompt",
    )

    temperature: float = _sampling(
        0.8, Number(0, note="0 is greedy"), "Sampling temperature; 0 selects the most likely token"
    )
    top_k: int = _sampling(
        40,
        Integer(0, note="0 for no limit"),
        "Sample only from the N most likely tokens; 0 for all tokens",
    )
    top_p: float = _sampling(
        1.0,
        _PROBABILITY,
        "Sample from the smallest set of most likely tokens whose total probability is at least X",
    )
    min_p: float = _sampling(
        0.0,
        Number(0, 1),
        "Exclude tokens whose probability is below X times the probability of the most likely "
        "token",
    )
    typical_p: float = _sampling(
        1.0,
        _PROBABILITY,
        "Locally typical sampling: rank tokens by how close their surprisal is to the entropy, and "
        "sample from the smallest set of closest tokens whose total probability is at least X",
        details="See Meister et al. 2022.",
    )
    seed: int | None = _sampling(
        None,
        Integer(0, is_optional=True),
        "Random seed; on one machine, the same seed and options give the same text",
        is_model_default=False,
        default_text="random",
    )

    num_beams: int = _beam_search(
        1,
        Integer(1, 64),
        "Use beam search with N beams instead of sampling; 1 for no beam search",
        json_name="use_beam_search",
    )
    length_penalty: float = _beam_search(
        1.0,
        Number(-100, 100),
        "Exponent X in a beam's score, which is log probability / (number of tokens)^X; a higher X "
        "favors longer texts",
    )
    early_stopping: EarlyStopping = _beam_search(
        False,
        OneOf(True, False, "never"),
        "With true, the search ends once {num_beams} texts are complete. With false, it then "
        "continues until no unfinished beam has a higher score than the worst complete text. With "
        "'never' (slowest), it continues until no unfinished beam could reach a higher score by "
        "growing longer",
    )

    repetition_penalty: float = _penalty(
        1.0,
        Number(0.001, 1000, note="1 for none"),
        "Penalize tokens that the prompt or the generated text already contains; 1 has no "
        "effect, and values above 1 discourage repetition",
        details="Positive logits are divided by X, and negative logits are multiplied by X "
        "(Keskar et al. 2019).",
        is_model_default=True,
    )
    presence_penalty: float = _penalty(
        0.0,
        Number(-2, 2),
        "Subtract X from the logit of each token that the generated text contains",
        details="The penalty is the same as in OpenAI's API.",
    )
    frequency_penalty: float = _penalty(
        0.0,
        Number(-2, 2),
        "From the logit of each token, subtract X times the token's count in the generated text",
        details="The penalty is the same as in OpenAI's API.",
    )
    no_repeat_ngram_size: int = _penalty(
        0,
        Integer(0, note="0 for none"),
        "Never generate a sequence of N tokens that the prompt or the generated text already "
        "contains; 0 allows repeats",
        is_model_default=True,
    )
    logit_bias: tuple[tuple[int, float], ...] = _penalty(
        (), Biases(), "Add X to the logit of the token with id ID"
    )
    bad_words: tuple[str, ...] = _penalty(
        (),
        Texts(),
        "Never generate TEXT's sequence of tokens, with or without a space before TEXT. A longer "
        "word that contains TEXT can still appear if the word is split into different tokens",
        flags=("--bad-word",),
    )
    bad_words_ids: tuple[tuple[int, ...], ...] = _penalty(
        (), IdLists(), "Never generate these sequences of token ids"
    )

    max_new_tokens: int = _stopping(
        200,
        Integer(1),
        "Maximum number of tokens to generate",
        flags=("-n", "--max-new-tokens"),
        json_name="max_tokens",
        is_model_default=True,
    )
    min_new_tokens: int = _stopping(
        0,
        Integer(0),
        "Exclude the end-of-text token until N tokens are generated; a stop string or another "
        "limit can still end the text earlier",
        json_name="min_tokens",
        is_model_default=True,
    )
    max_time: float | None = _stopping(
        None,
        Number(0, is_open=True, unit="seconds", is_optional=True),
        "Stop after this many seconds and return the text so far",
        details="The time is measured from the start of the call. A decode step in progress is "
        "completed.",
        default_text="no limit",
        is_model_default=True,
    )
    ignore_eos: bool = _stopping(
        False,
        Flag(),
        "Never generate the end-of-text token (EOS); the text ends at a stop string, at "
        "{max_new_tokens} or at another limit",
    )
    stop: tuple[str, ...] = _stopping(
        (),
        Texts(is_single=True),
        "End the output before TEXT; in a shell, write a newline as $'\\n'",
    )
    stop_token_ids: tuple[int, ...] = _stopping(
        (),
        Ids(),
        "End the output before the token with id ID",
        flags=("--stop-id", "--stop-token-id"),
    )
    stop_regex: tuple[str, ...] = _stopping(
        (),
        Patterns(is_single=True),
        "End the output before a match of this regular expression",
        details="With a pattern such as `cat\\b` or `foo(?!bar)`, later text can invalidate a "
        "match. Such a match ends the output only when no later text can invalidate it.",
        metavar="PATTERN",
    )
    window: int = _stopping(
        0,
        Integer(0, note="0 to end when the context is full"),
        "When the context is full, keep only the last N tokens and continue. If a prompt is "
        "longer than the context, keep only the prompt's last N tokens. With 0, the output ends "
        "when the context is full, and a prompt longer than the context is rejected",
    )

    choices: tuple[str, ...] = _constraint(
        (),
        Choices(),
        "Generate one of the given texts and nothing else. To separate TEXT from the prompt, begin "
        "TEXT with a space, as in ' yes'",
        flags=("--choice",),
        json_name="structured_outputs.choice",
    )
    regex: str | None = _constraint(
        None,
        Text(is_optional=True),
        "Generate a text that fully matches this regular expression. Look-around and "
        "back-references are not supported, and anchors are allowed only at the start and the end "
        "of the pattern",
        details="See `gpt2np.constraints.syntax`.",
        metavar="PATTERN",
        json_name="structured_outputs.regex",
    )
    json_schema: str | None = _constraint(
        None,
        JsonSchema(is_optional=True),
        "Generate JSON that is valid against this JSON Schema",
        details="See the guide to constraints for the supported keywords.",
        json_name="structured_outputs.json",
    )

    num_return_sequences: int = _output(
        1,
        Integer(1, 1000),
        "Number of texts to return. Beam search returns the N best texts; N must not exceed the "
        "number of beams. Samples have the seeds {seed}, {seed} + 1 and so on",
        flags=("--samples", "--num-return-sequences"),
        json_name="n",
    )
    best_of: int | None = _output(
        None,
        Integer(1, 1000, is_optional=True),
        "Number of texts to sample; {num_return_sequences} sets how many of them are returned. The "
        "texts with the highest mean log probability per token are returned, best first",
    )
    logprobs: int | None = _output(
        None,
        Integer(0, 1000, is_optional=True),
        "Return the log probabilities of each generated token and of the N most likely tokens at "
        "the same position",
    )
    prompt_logprobs: int | None = _output(
        None,
        Integer(0, 1000, is_optional=True),
        "Return the log probabilities of each prompt token and of the N most likely tokens at the "
        "same position",
    )

    draft: Draft = option(
        "auto",
        OneOf("auto", "none"),
        "'auto' uses speculative decoding if the model has a source of draft tokens. 'none' never "
        "uses speculative decoding. Both values give the same text",
        group="Performance",
    )

    def __post_init__(self) -> None:
        check_options(self)
        for is_contradiction, message in _CONTRADICTIONS:
            if is_contradiction(self):
                named = {name: x for name, x in vars(self).items() if f"{{{name}}}" in message}
                raise InvalidArgumentError(message, **named)

    def with_seed(self, seed: int) -> GenerationOptions:
        """Return the options with another seed. Long lists are not checked again."""
        options = copy(self)
        object.__setattr__(options, "seed", seed)
        return options

    @property
    def n_drawn(self) -> int:
        """Number of continuations generated for each prompt."""
        return self.best_of or self.num_return_sequences


GenerationOptions.__doc__ = f"{GenerationOptions.__doc__}\n{attributes_text(GenerationOptions)}"

ONE_TEXT_ONLY = ("Prompt", "Beam search", "Output")
"""Groups of options that a conversation, which is one text, does not have."""

TEXT_CONSTRAINTS = ("choices", "regex", "json_schema")
"""Options of which at most one is given: what the text must be."""

_CONTRADICTIONS: tuple[tuple[Callable[[GenerationOptions], object], str], ...] = (
    (
        lambda o: o.num_beams > 1 and o.temperature > 0,
        "{num_beams} is {num_beams.value} and {temperature} {temperature.value}: beam search does "
        "not sample; set {temperature} to 0, or {num_beams} to 1",
    ),
    (
        lambda o: o.num_beams > 1 and o.best_of is not None,
        "{num_beams} is {num_beams.value} and {best_of} {best_of.value}: beam search does not "
        "sample; omit one of them",
    ),
    (
        lambda o: 1 < o.num_beams < o.num_return_sequences,
        "{num_return_sequences} is {num_return_sequences.value} and {num_beams} "
        "{num_beams.value}: there are no more continuations than beams",
    ),
    (
        lambda o: o.num_beams > 1 and o.window,
        "{num_beams} is {num_beams.value}: beam search does not support {window}; omit it, or set "
        "{num_beams} to 1",
    ),
    (
        lambda o: o.temperature == 0 and (o.best_of or 1) > 1,
        "{best_of} is {best_of.value} and {temperature} 0: greedy continuations are all the same; "
        "set {temperature} above 0, or {num_beams}",
    ),
    (
        lambda o: o.temperature == 0 and not o.best_of and o.num_return_sequences > o.num_beams,
        "{num_return_sequences} is {num_return_sequences.value} and {temperature} 0: greedy "
        "continuations are all the same; set {temperature} above 0, or {num_beams}",
    ),
    (
        lambda o: o.best_of is not None and o.best_of < o.num_return_sequences,
        "{best_of} is {best_of.value}, less than {num_return_sequences}, "
        "{num_return_sequences.value}",
    ),
    (
        lambda o: o.min_new_tokens > o.max_new_tokens,
        "{min_new_tokens} is {min_new_tokens.value}, more than {max_new_tokens}, "
        "{max_new_tokens.value}",
    ),
    (
        lambda o: o.stop_regex and (o.choices or o.regex or o.json_schema),
        "{stop_regex} would end a text before it matches {choices}, {regex} or {json_schema}; omit "
        "{stop_regex}",
    ),
    (
        lambda o: o.token_healing and (o.choices or o.regex or o.json_schema),
        "{token_healing} cannot be combined with {choices}, {regex} or {json_schema}; omit one",
    ),
    (
        lambda o: sum(map(bool, (o.choices, o.regex, o.json_schema))) > 1,
        "{choices}, {regex} and {json_schema} contradict each other; give one",
    ),
)
"""Pairs of a condition, which can rely on those before it, and a message that names the options."""
