"""The files of a model folder: config, weights, vocabulary, model card.

`transformers` writes the weights to `model.safetensors`. Larger models are split into shards
(`model-00001-of-00003.safetensors`, …) with an index, `model.safetensors.index.json`, whose
"weight_map" maps each tensor to its shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from gpt2np.data.files import read_json_object
from gpt2np.errors import CheckpointError, short_repr
from gpt2np.limits import limits

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
CARD_FILE = "README.md"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
NGRAM_TABLE_FILE = "ngram_draft.safetensors"
UNSUPPORTED_SUFFIXES = (".bin", ".ckpt", ".ggml", ".gguf", ".h5", ".onnx", ".pt", ".pth")
"""Suffixes of weights in formats that gpt2np neither reads nor writes."""

_MAX_FILENAME_BYTES = 255  # limit of every common file system; longer names raise an OSError
_NOT_WEIGHTS = {"training_args.bin", "optimizer.pt", "scheduler.pt"}  # pickles of trainers


VOCABULARY_FORMATS = (("tokenizer.json",), ("vocab.json", "merges.txt"))
"""The files of each vocabulary format; a model needs all files of one format."""
VOCABULARY_EXTRAS = ("added_tokens.json", "tokenizer_config.json", "special_tokens_map.json")
VOCABULARY_FILES = tuple(name for names in VOCABULARY_FORMATS for name in names)
OPTIONAL_FILES = (
    "generation_config.json",
    *VOCABULARY_EXTRAS,
    CHAT_TEMPLATE_FILE,
    CARD_FILE,
    NGRAM_TABLE_FILE,
)


def missing_files(exists: Callable[[str], bool], *, weights: bool) -> list[str]:
    """Return the missing files of a model or, without `weights`, of a vocabulary; no shards."""
    missing = ["config.json"] if weights and not exists("config.json") else []
    if weights and not (exists(WEIGHTS_FILE) or exists(INDEX_FILE)):
        missing.append(WEIGHTS_FILE)
    if not any(all(map(exists, names)) for names in VOCABULARY_FORMATS):
        missing.append("vocabulary (tokenizer.json or vocab.json + merges.txt)")
    return missing


def missing_in(folder: Path, *, weights: bool = True) -> list[str]:
    """Return the required files and shards that `folder` lacks; see `missing_files`."""
    missing = missing_files(lambda name: (folder / name).is_file(), weights=weights)
    shards = list_weight_files(folder) if weights else []
    return missing + [name for name in shards if not (folder / name).exists()]


COMPANIONS = (
    *VOCABULARY_FILES,
    *OPTIONAL_FILES,
    "encoder.json",
    "vocab.bpe",
    "LICENSE*",
)
"""Names and patterns of the files that a model folder can have besides config and weights."""


def list_weight_files(folder: Path) -> list[str]:
    """Return the names of the weight files: a single file, or an index and its shards; or []."""
    if (folder / WEIGHTS_FILE).is_file():
        return [WEIGHTS_FILE]
    index = folder / INDEX_FILE
    return [INDEX_FILE, *sorted(set(read_index(index).values()))] if index.is_file() else []


def read_index(path: Path) -> dict[str, str]:
    """Read the index of a sharded model; return the shard's file name for each tensor name.

    Raises CheckpointError if the index is damaged, or names a file in another folder.
    """
    content = read_json_object(path, CheckpointError, max_bytes=limits().max_config_bytes)
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{path} is damaged: it has no weight_map; download or save the model again"
        )
    for tensor, shard in weight_map.items():
        if not _is_shard_name(shard):
            raise CheckpointError(
                f"{path}: {tensor} is mapped to {short_repr(shard)}; expected the name of a "
                ".safetensors file in the same folder"
            )
    return weight_map


def _is_shard_name(name: object) -> bool:
    """Tell whether a name is a safetensors file name without a folder, unlike a/b, a\\b and c:d."""
    return (
        isinstance(name, str)
        and name.endswith(".safetensors")
        and name.isprintable()
        and len(name.encode()) <= _MAX_FILENAME_BYTES
        and not set(name) & set("/\\:")
    )


def missing_weights(folder: Path) -> str:
    """Return the error message for a folder without safetensors weights."""
    if pickles := find_pickles(file.name for file in folder.iterdir()):
        return (
            f"{folder} has its weights in {pickles[0]}, a pickle; gpt2np never opens pickles, "
            f"because they can run code; {conversion_advice(str(folder))}"
        )
    return f"{folder} has no {WEIGHTS_FILE}; a model folder needs one next to config.json"


def find_pickles(names: Iterable[str]) -> list[str]:
    """Return the file names that look like pickled weights."""
    suffixes = (".bin", ".pt", ".pth")
    pickles = [name for name in names if name.endswith(suffixes) or ".ckpt" in name]
    return sorted(set(pickles) - _NOT_WEIGHTS)


def conversion_advice(model: str) -> str:
    """Return advice on how to convert the pickled weights of a folder or Hub id to safetensors."""
    return (
        "if you trust the model, convert it with transformers: AutoModelForCausalLM"
        f".from_pretrained({model!r}).save_pretrained('converted'), and the same with AutoTokenizer"
    )
