"""A model's `generation_config.json`: default options and end-of-text ids."""

import os
from pathlib import Path

from gpt2np.checkpoint.config import parse_eos_token_ids
from gpt2np.data.files import read_json_object
from gpt2np.errors import CheckpointError, InvalidArgumentError, errors_at
from gpt2np.generation.options import FILTERS, GenerationOptions
from gpt2np.limits import limits

GENERATION_CONFIG_FILE = "generation_config.json"

_SUPPORTED = (  # keys that set the default of the option of this name
    *("temperature", "num_beams", "early_stopping", "length_penalty", "repetition_penalty"),
    *("no_repeat_ngram_size", "max_new_tokens", "min_new_tokens", "max_time", *FILTERS),
)


def read_generation_config(folder: Path) -> tuple[GenerationOptions, frozenset[int]]:
    """Return the default options and end-of-text ids of a folder's `generation_config.json`.

    Without the file, and for what it does not say, these are gpt2np's defaults. Unknown keys are
    ignored, as in `config.json`.

    Raises:
        CheckpointError: the file is damaged, or an option in it is out of range.
    """
    path = folder / GENERATION_CONFIG_FILE
    if not os.path.lexists(path):  # a broken link is an error
        return GenerationOptions(), frozenset()
    content = read_json_object(path, CheckpointError, max_bytes=limits().max_config_bytes)
    with errors_at(f"{path}: "):
        eos_token_ids = frozenset(parse_eos_token_ids(content.get("eos_token_id")))
    options = {name: content[name] for name in _SUPPORTED if content.get(name) is not None}
    if content.get("do_sample") is False:
        options["temperature"] = 0.0
    words, tokens = (content.get(name) or [] for name in ("bad_words_ids", "suppress_tokens"))
    if not (isinstance(words, list) and isinstance(tokens, list)):
        raise CheckpointError(f"{path}: bad_words_ids and suppress_tokens must be lists")
    ends = [[token_id] for token_id in eos_token_ids]  # transformers does not ban these either
    words = [word for word in words if word not in ends]
    options["bad_words_ids"] = [*words, *([token_id] for token_id in tokens)]
    if options.get("num_beams", 1) != 1:
        if content.get("do_sample"):  # beam sampling, which gpt2np does not have
            del options["num_beams"]
        else:
            options["temperature"] = 0.0
    try:
        defaults = GenerationOptions(**options)
    except InvalidArgumentError as error:
        raise CheckpointError(f"{path}: {error}") from error
    return defaults, eos_token_ids
