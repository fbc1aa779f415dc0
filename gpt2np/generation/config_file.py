"""What a model's `generation_config.json` proposes."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from gpt2np.checkpoint.config import parse_eos_token_ids
from gpt2np.data.files import SMALL_JSON_BYTES, read_json_object
from gpt2np.errors import CheckpointError, InvalidArgumentError, short_repr
from gpt2np.generation.options import GenerationOptions

GENERATION_CONFIG_FILE = "generation_config.json"

# Options that a file has no say in: they are about one call, not about the model.
_OF_A_CALL = {
    *(
        "seed",
        "stop",
        "stop_token_ids",
        "stop_regex",
        "num_return_sequences",
        "best_of",
        "window",
        "prompt_lookup",
    ),
    *("logprobs", "prompt_logprobs", "choices", "regex", "logit_bias", "bad_words", "ignore_eos"),
    *("presence_penalty", "frequency_penalty"),  # transformers has none
}

# What would change the text in transformers and isn't done here → the values that change nothing.
_NOT_DONE: dict[str, tuple[object, ...]] = {
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "penalty_alpha": (0,),
    "min_length": (0,),
    "max_length": (20,),  # transformers' default, which older versions write
    "begin_suppress_tokens": ([],),
    "sequence_bias": ({}, []),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1,),
}


@dataclass(frozen=True)
class GenerationConfig:
    """What a model's `generation_config.json` says.

    Attributes:
        options: those it proposes, with gpt2np's own defaults for what it doesn't say.
        eos_token_ids: the ids that end a text, if it names any.
        ignored: the keys that ask for something that gpt2np doesn't do.
    """

    options: GenerationOptions = field(default_factory=GenerationOptions)
    eos_token_ids: frozenset[int] = frozenset()
    ignored: tuple[str, ...] = ()


def read_generation_config(folder: Path) -> GenerationConfig:
    """What a folder's `generation_config.json` says; nothing, if there is none.

    Raises:
        CheckpointError: the file is damaged or holds an impossible value.
    """
    path = folder / GENERATION_CONFIG_FILE
    if not os.path.lexists(path):  # a link to nothing is not as if there were none
        return GenerationConfig()
    content = read_json_object(path, CheckpointError, max_bytes=SMALL_JSON_BYTES)
    ignored = [
        name
        for name, harmless in _NOT_DONE.items()
        if content.get(name) is not None and content[name] not in harmless
    ]
    eos_token_ids = frozenset(parse_eos_token_ids(content.get("eos_token_id"), str(path)))
    chosen = _proposed(content, str(path), eos_token_ids)
    if chosen.get("num_beams", 1) != 1:
        if content.get("do_sample"):  # of transformers' two kinds of beam search, the random one
            ignored.append("num_beams")
            del chosen["num_beams"]
        else:
            chosen["temperature"] = 0.0
    try:
        options = replace(GenerationOptions(), **chosen)
    except InvalidArgumentError as error:
        raise CheckpointError(f"{path}: {error}") from error
    return GenerationConfig(options, eos_token_ids, tuple(ignored))


def _proposed(
    content: Mapping[str, Any], source: str, eos_token_ids: frozenset[int]
) -> dict[str, Any]:
    known = {each.name for each in fields(GenerationOptions)} - _OF_A_CALL
    chosen = {name: content[name] for name in known if content.get(name) is not None}
    if content.get("do_sample") is False:
        chosen["temperature"] = 0.0
    words = _list(content, "bad_words_ids", source)
    # As in transformers, an end of the text can't be a bad word.
    words = [word for word in words if word not in [[end] for end in eos_token_ids]]
    single = [[number] for number in _list(content, "suppress_tokens", source)]
    if words or single:
        chosen["bad_words"] = [*words, *single]
    return chosen


def _list(content: Mapping[str, Any], name: str, source: str) -> list[Any]:
    value = content.get(name) or []
    if not isinstance(value, list):
        raise CheckpointError(f"{source}: {name} is {short_repr(value)}, expected a list")
    return value
