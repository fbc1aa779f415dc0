"""What a user may choose about a generation, and what the model's own files propose."""

import os
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from gpt2np.errors import CheckpointError, InvalidArgumentError, shown
from gpt2np.json_file import SMALL, read_json_object
from gpt2np.model.config import token_ids

GENERATION_CONFIG_FILE = "generation_config.json"


@dataclass(frozen=True)
class GenerationOptions:
    """How to continue a text.

    Attributes:
        max_new_tokens: stop after this many, at least 1.
        temperature: 0 takes the likeliest token (greedy); above 0 samples.
        top_k: sample among the k likeliest tokens only; 0 for no limit.
        top_p: sample among the fewest tokens that together reach this probability, 0 < p ≤ 1.
        seed: of the random stream; None chooses one.
        stop: a text that ends the generation, or several; none of them appears in the result.

    Raises:
        InvalidArgumentError: a value out of its range.
    """

    max_new_tokens: int = 200
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        whole = _is_whole(self.max_new_tokens) and self.max_new_tokens >= 1
        _require(whole, "max_new_tokens", self.max_new_tokens, "a whole number, at least 1")
        number = _is_number(self.temperature) and self.temperature >= 0
        _require(number, "temperature", self.temperature, "0 (greedy) or above, and finite")
        whole = _is_whole(self.top_k) and self.top_k >= 0
        _require(whole, "top_k", self.top_k, "a whole number, at least 1, or 0 for no limit")
        number = _is_number(self.top_p) and 0 < self.top_p <= 1
        _require(number, "top_p", self.top_p, "above 0 and at most 1")
        whole = self.seed is None or (_is_whole(self.seed) and self.seed >= 0)
        _require(whole, "seed", self.seed, "a whole number, at least 0")
        stops = (self.stop,) if isinstance(self.stop, str) else self.stop
        listed = isinstance(stops, (tuple, list))
        texts = listed and all(isinstance(text, str) and text for text in stops)
        _require(texts, "stop", self.stop, "a text or several, none of them empty")
        object.__setattr__(self, "stop", tuple(stops))


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    """Whether it is a finite number: neither nan, which compares false, nor more than a float."""
    right_kind = isinstance(value, Real) and not isinstance(value, bool)
    return right_kind and bool(abs(value) < 1e300)


def _require(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise InvalidArgumentError(f"{name} is {shown(value)}; it must be {expected}")


# What would change the text in transformers and isn't done here → the values that change nothing.
_NOT_DONE: dict[str, tuple[object, ...]] = {
    "repetition_penalty": (1,),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "min_p": (0,),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "penalty_alpha": (0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "max_length": (20,),  # transformers' default, which older versions write
    "bad_words_ids": ([],),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "sequence_bias": ({},),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1,),
}


@dataclass(frozen=True)
class GenerationConfig:
    """What a model's `generation_config.json` says.

    Attributes:
        options: those it proposes, with gpt2np's own defaults for what it doesn't say.
        end_ids: the ids that end a text, if it names any.
        ignored: the keys that ask for something that gpt2np doesn't do.
    """

    options: GenerationOptions = GenerationOptions()
    end_ids: frozenset[int] = frozenset()
    ignored: tuple[str, ...] = ()


def read_generation_config(folder: Path) -> GenerationConfig:
    """What a folder's `generation_config.json` says; nothing, if there is none.

    Raises:
        CheckpointError: the file is damaged or holds an impossible value.
    """
    path = folder / GENERATION_CONFIG_FILE
    if not os.path.lexists(path):  # a link to nothing is not as if there were none
        return GenerationConfig()
    content = read_json_object(path, CheckpointError, at_most=SMALL)
    known = {field.name for field in fields(GenerationOptions)} - {"seed", "stop"}
    chosen = {name: content[name] for name in known if content.get(name) is not None}
    if content.get("do_sample") is False:
        chosen["temperature"] = 0.0
    try:
        options = replace(GenerationOptions(), **chosen)
    except InvalidArgumentError as error:
        raise CheckpointError(f"{path}: {error}") from error
    end_ids = frozenset(token_ids(content.get("eos_token_id"), str(path)))
    asked = (name for name in _NOT_DONE if content.get(name) is not None)
    ignored = tuple(name for name in asked if content[name] not in _NOT_DONE[name])
    return GenerationConfig(options, end_ids, ignored)
