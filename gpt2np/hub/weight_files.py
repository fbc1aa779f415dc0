"""Which files hold a model's weights: one, or shards that an index names.

`transformers` writes `model.safetensors`, or, of larger models, `model-00001-of-00003.safetensors`
and so on with a `model.safetensors.index.json` whose "weight_map" says which tensor is where.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gpt2np.data.files import SMALL_JSON_BYTES, read_json_object
from gpt2np.errors import CheckpointError, short_repr

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_LONGEST_NAME = 255  # bytes, on every usual file system; beyond, asking for the file is an error
_PICKLES_OF_TRAINERS = {"training_args.bin", "optimizer.pt", "scheduler.pt"}  # hold no weights


def read_index(path: Path) -> dict[str, str]:
    """Tensor name → the name of its shard, a file in the same folder as the index.

    Raises:
        CheckpointError: the index can't be read, has no such map, or names a file elsewhere.
    """
    weight_map = read_json_object(path, CheckpointError, max_bytes=SMALL_JSON_BYTES).get(
        "weight_map"
    )
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path} is damaged: it has no weight_map")
    for tensor, shard in weight_map.items():
        if not _is_plain_name(shard):
            raise CheckpointError(
                f"{path}: {tensor} is placed in {short_repr(shard)}; expected the name of a "
                ".safetensors file in the same folder"
            )
    return weight_map


def shard_name(number: int, total: int) -> str:
    """The name of one of several files: (1, 3) → model-00001-of-00003.safetensors."""
    return f"model-{number:05}-of-{total:05}.safetensors"


def _is_plain_name(shard: object) -> bool:
    """Whether it stays in the folder, by the rules of every platform: a/b, a\\b and c:d don't."""
    return (
        isinstance(shard, str)
        and shard.endswith(".safetensors")
        and shard.isprintable()
        and len(shard.encode()) <= _LONGEST_NAME
        and not set(shard) & set("/\\:")
    )


def missing_weights(folder: Path) -> str:
    """What to say of a folder that holds neither the one file nor an index."""
    if pickles := pickles_among(file.name for file in folder.iterdir()):
        return (
            f"{folder} holds its weights as {pickles[0]}, a pickle, which can run code and is "
            f"never opened; {conversion_advice(str(folder))}"
        )
    return f"{folder} holds no {WEIGHTS_FILE}; a model's folder needs it beside config.json"


def pickles_among(names: Iterable[str]) -> list[str]:
    """Those of `names`, the files of a folder, that seem to hold weights as a pickle."""
    endings = (".bin", ".pt", ".pth")
    pickles = [name for name in names if name.endswith(endings) or ".ckpt" in name]
    return sorted(set(pickles) - _PICKLES_OF_TRAINERS)


def conversion_advice(model: str, revision: str | None = None) -> str:
    """How to make a folder with safetensors of `model`, a folder or a Hub id with pickles."""
    of = f"({model!r}, revision={revision!r})" if revision else f"({model!r})"
    return (
        "convert it with transformers, where you trust it: "
        f"AutoModelForCausalLM.from_pretrained{of}.save_pretrained('converted'); "
        f"AutoTokenizer.from_pretrained{of}.save_pretrained('converted')"
    )
