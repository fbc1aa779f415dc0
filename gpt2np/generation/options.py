"""What a user may choose about a generation."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, TypedDict

from gpt2np.errors import InvalidArgumentError, short_repr

EarlyStopping = bool | Literal["never"]


class Options(TypedDict, total=False):
    """The keyword arguments of `LanguageModel.generate`: see `GenerationOptions`."""

    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    no_repeat_ngram_size: int
    logit_bias: Mapping[int, float]
    bad_words: Sequence[str | Sequence[int]]
    min_new_tokens: int
    ignore_eos: bool
    seed: int | None
    num_return_sequences: int
    best_of: int | None
    num_beams: int
    length_penalty: float
    early_stopping: EarlyStopping
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    stop_regex: str | Sequence[str]
    window: int
    prompt_lookup: bool
    logprobs: int | None
    prompt_logprobs: int | None
    choices: Sequence[str]
    regex: str | None


@dataclass(frozen=True)
class GenerationOptions:
    """How to continue a text.

    Attributes:
        max_new_tokens: stop after this many, at least 1.
        temperature: 0 takes the likeliest token (greedy); above 0 samples.
        top_k: sample among the k likeliest tokens only; 0 for no limit.
        top_p: sample among the fewest tokens that together reach this probability, 0 < p ≤ 1.
        min_p: sample among the tokens at least min_p times as likely as the likeliest, 0 ≤ p ≤ 1.
        typical_p: sample among the tokens whose surprise is nearest to the expected one, the fewest
            that together reach this probability, 0 < p ≤ 1 (Meister et al. 2022).
        repetition_penalty: logits of tokens seen in prompt or continuation are divided by it where
            positive and multiplied where negative (Keskar et al. 2019), 0.001 … 1000.
        presence_penalty: taken from the logits of tokens that have been generated, -2 … 2.
        frequency_penalty: the same, once for each time, -2 … 2. Both are those of OpenAI's API and
            don't look at the prompt.
        no_repeat_ngram_size: no run of so many tokens comes twice, prompt included; 0: any may.
        logit_bias: added to the logits of some ids, as in {50256: -5.0}, -10,000 … 10,000; ids may
            be texts, as keys in JSON are.
        bad_words: never generated: texts, as they stand and after a space, or lists of ids.
        min_new_tokens: no end of text before so many.
        ignore_eos: no end of text at all.
        seed: of the random stream; None chooses one.
        num_return_sequences: so many continuations; sample j, from 0, is what `seed + j` gives alone.
            At most 1000.
        best_of: draw so many, at most 1000, and return the `samples` with the highest mean log
            probability.
        num_beams: search with so many beams, at most 64, instead of sampling; 1 for none.
        length_penalty: a beam's score is its log probability divided by its length to this power.
        early_stopping: whether beam search ends when `num_beams` are done (True), when no running
            beam is better at its present length (False), or could become so ("never").
        stop: a text that ends the generation, or several; none of them appears in the result.
        stop_token_ids: ids that end the generation; their text does not appear in the result.
        stop_regex: a regular expression whose match ends the generation, or several; the result
            ends where the match begins. If what comes next may undo it, as with `cat\\b` or
            `foo(?!bar)`, it counts when that has come.
        window: when the context is full, go on with only the last so many tokens; 0 ends there.
        prompt_lookup: guess runs of tokens from what the text said before; the result is the same.
        logprobs: give the log probability of every token and of so many of the likeliest beside it,
            0 … 1000.
        prompt_logprobs: the same for the prompt's tokens.
        choices: the continuation is one of these texts.
        regex: the continuation, as a whole, matches this regular expression; a `^` at its beginning
            and a `$` at its end do nothing. See `gpt2np.constraints.syntax`.

    Log probabilities are the model's own, before any penalty, filter or temperature.

    Raises:
        InvalidArgumentError: a value out of its range, or two that contradict each other.
    """

    max_new_tokens: int = 200
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[str | tuple[int, ...], ...] = ()
    min_new_tokens: int = 0
    ignore_eos: bool = False
    seed: int | None = None
    num_return_sequences: int = 1
    best_of: int | None = None
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    window: int = 0
    prompt_lookup: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    choices: tuple[str, ...] = ()
    regex: str | None = None

    def __post_init__(self) -> None:
        for name, (fits, expected) in _RANGES.items():
            _require(fits(getattr(self, name)), name, getattr(self, name), expected)
        for name in ("stop", "stop_regex", "choices"):
            self._set_texts(name)
        self._set_bias()
        self._set_ids()
        self._check_regexes()
        for contradiction, told in (*self._against_beams(), *self._contradictions()):
            if contradiction:
                raise InvalidArgumentError(told)

    @property
    def drawn(self) -> int:
        """How many continuations are drawn for a prompt."""
        return self.best_of or self.num_return_sequences

    def _set_texts(self, name: str) -> None:
        given = getattr(self, name)
        texts = (given,) if isinstance(given, str) and name != "choices" else given
        listed = isinstance(texts, (tuple, list))
        whole = listed and all(isinstance(text, str) and text for text in texts)
        if name == "choices" and given == []:  # () is the default
            raise InvalidArgumentError("choices is an empty list; give at least one text")
        many = "several texts" if name == "choices" else "a text or several"
        _require(whole, name, given, f"{many}, none of them empty")
        object.__setattr__(self, name, tuple(texts))

    def _set_bias(self) -> None:
        given = self.logit_bias
        pairs = tuple(given.items()) if isinstance(given, Mapping) else given
        fits = isinstance(pairs, tuple) and all(
            _is_list(pair)
            and len(pair) == 2
            and (_is_id(pair[0]) or _is_id_in_json(pair[0]))
            and _is_number(pair[1])
            and abs(pair[1]) <= 10_000
            for pair in pairs
        )
        expected = 'ids with numbers from -10000 to 10000, as in {7: -5}, in JSON {"7": -5}'
        _require(fits, "logit_bias", given, expected)
        object.__setattr__(self, "logit_bias", tuple((int(i), float(b)) for i, b in pairs))

    def _set_ids(self) -> None:
        ids = self.stop_token_ids
        fits = _is_list(ids) and all(map(_is_id, ids))
        _require(fits, "stop_token_ids", ids, "a list of ids, whole numbers from 0")
        object.__setattr__(self, "stop_token_ids", tuple(map(int, ids)))
        words = self.bad_words
        fits = _is_list(words) and all(
            (isinstance(word, str) or (_is_list(word) and all(map(_is_id, word)))) and len(word)
            for word in words
        )
        _require(fits, "bad_words", words, "a list of texts or of lists of ids, none of them empty")
        plain = (word if isinstance(word, str) else tuple(map(int, word)) for word in words)
        object.__setattr__(self, "bad_words", tuple(plain))

    def _check_regexes(self) -> None:
        if self.stop_regex:
            from gpt2np.generation.stop_regex import compiled

            for pattern in self.stop_regex:
                compiled(pattern)

    def _against_beams(self) -> list[tuple[bool, str]]:
        beams = self.num_beams
        return [
            (
                beams > 1 and self.temperature > 0,
                f"num_beams is {beams} and temperature {self.temperature}: beam search doesn't "
                f"sample; set temperature to 0, or num_beams to 1",
            ),
            (
                beams > 1 and self.best_of is not None,
                f"num_beams is {beams} and best_of {self.best_of}: beam search draws no samples; "
                f"leave one of them out",
            ),
            (
                beams > 1 and self.num_return_sequences > beams,
                f"num_return_sequences is {self.num_return_sequences} and num_beams {beams}: there are only as many "
                f"continuations as beams",
            ),
            (
                beams > 1 and bool(self.window or self.prompt_lookup),
                f"num_beams is {beams}: beam search knows neither window nor prompt_lookup; leave "
                f"them out, or set num_beams to 1",
            ),
        ]

    def _contradictions(self) -> list[tuple[bool, str]]:
        many = "best_of" if self.best_of else "num_return_sequences"
        return [
            (
                self.num_beams == 1 and self.temperature == 0 and self.drawn > 1,
                f"{many} is {self.drawn} and temperature 0: greedy continuations are all the same; "
                f"set a temperature above 0, or num_beams",
            ),
            (
                self.best_of is not None and self.best_of < self.num_return_sequences,
                f"best_of is {self.best_of}, which is less than num_return_sequences, {self.num_return_sequences}",
            ),
            (
                self.min_new_tokens > self.max_new_tokens,
                f"min_new_tokens is {self.min_new_tokens}, which is more than max_new_tokens, "
                f"{self.max_new_tokens}",
            ),
            (
                bool(self.choices) and self.regex is not None,
                "choices and regex contradict each other; give one of them",
            ),
        ]


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_id(value: Any) -> bool:
    return _is_whole(value) and value >= 0


def _is_id_in_json(value: Any) -> bool:
    """Whether it is an id as a key in JSON."""
    return isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _is_number(value: Any) -> bool:
    """Whether it is a finite number: neither nan, which compares false, nor more than a float."""
    right_kind = isinstance(value, Real) and not isinstance(value, bool)
    return right_kind and bool(abs(value) < 1e300)


def _whole(at_least: int, at_most: float = math.inf) -> Callable[[Any], bool]:
    return lambda value: _is_whole(value) and at_least <= value <= at_most


def _number(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: _is_number(value) and low <= value <= high


def _share(value: Any) -> bool:
    return _is_number(value) and 0 < value <= 1


def _or_none(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_new_tokens": (_whole(1), "a whole number, at least 1"),
    "temperature": (_number(0, 1e300), "0 (greedy) or above, and finite"),
    "top_k": (_whole(0), "a whole number, at least 1, or 0 for no limit"),
    "top_p": (_share, "above 0 and at most 1"),
    "min_p": (_number(0, 1), "from 0 to 1"),
    "typical_p": (_share, "above 0 and at most 1"),
    "repetition_penalty": (_number(0.001, 1000), "from 0.001 to 1000; 1 for none"),
    "presence_penalty": (_number(-2, 2), "from -2 to 2"),
    "frequency_penalty": (_number(-2, 2), "from -2 to 2"),
    "no_repeat_ngram_size": (_whole(0), "a whole number, at least 1, or 0 for none"),
    "min_new_tokens": (_whole(0), "a whole number, at least 0"),
    "ignore_eos": (_is_bool, "True or False"),
    "seed": (_or_none(_whole(0)), "a whole number, at least 0"),
    "num_return_sequences": (_whole(1, 1000), "a whole number from 1 to 1000"),
    "best_of": (_or_none(_whole(1, 1000)), "a whole number from 1 to 1000"),
    "num_beams": (_whole(1, 64), "a whole number from 1 to 64"),
    "length_penalty": (_number(-100, 100), "from -100 to 100"),
    "early_stopping": (lambda value: _is_bool(value) or value == "never", "True, False or 'never'"),
    "window": (_whole(0), "a whole number, at least 1, or 0 to end with the context"),
    "prompt_lookup": (_is_bool, "True or False"),
    "logprobs": (_or_none(_whole(0, 1000)), "a whole number from 0 to 1000"),
    "prompt_logprobs": (_or_none(_whole(0, 1000)), "a whole number from 0 to 1000"),
    "regex": (_or_none(lambda value: isinstance(value, str) and value != ""), "a text, not empty"),
}


def _require(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise InvalidArgumentError(f"{name} is {short_repr(value)}; it must be {expected}")
