"""Writing of checkpoints with `transformers`' names and layout, with any dtype."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from gpt2np.checkpoint.config import ALIASES, CONFIG_FILE, LM_HEAD, WTE, GPT2Config, weight_shapes
from gpt2np.checkpoint.load import Checkpoint
from gpt2np.checkpoint.safetensors_file import DTYPES, TensorInfo, read_chunks, write_safetensors
from gpt2np.data.files import atomic_folder, read_json_object
from gpt2np.errors import CheckpointError, InvalidArgumentError, check_argument
from gpt2np.hub.model_files import COMPANIONS, WEIGHTS_FILE
from gpt2np.hub.repository import BUNDLED, FULL_NAMES
from gpt2np.limits import limits

_NOT_COPIED = {*ALIASES, "add_cross_attention", "quantization_config", "torch_dtype"}


def convert(
    checkpoint: Checkpoint,
    target: Path,
    *,
    dtype: str | None = None,
    on_progress: Callable[[int], object] = lambda _: None,
) -> None:
    """Write `checkpoint` to the new or empty folder `target` in the format of `transformers`.

    `dtype` is a key of `DTYPES`, by default the embedding's. Vocabulary, model card and license are
    copied. `on_progress` gets the number of values written since its last call.
    """
    check_argument(dtype in (None, *DTYPES), "dtype", dtype, f"one of {', '.join(DTYPES)}")
    tensors = checkpoint.model_tensors()
    dtype = dtype or next(name for name, kind in DTYPES.items() if kind == tensors[WTE].dtype)

    def read(tensor: TensorInfo) -> Iterator[NDArray[Any]]:
        for chunk in read_chunks(tensor):
            yield chunk
            on_progress(len(chunk))

    path = checkpoint.folder / CONFIG_FILE
    entries = read_json_object(path, CheckpointError, max_bytes=limits().max_config_bytes)
    entries = {name: value for name, value in entries.items() if name not in _NOT_COPIED}
    values = {name: read(tensor) for name, tensor in tensors.items()}
    _write(target, checkpoint.config, dtype, values, entries, _companions(checkpoint.folder))


def write_checkpoint(config: GPT2Config, weights: Mapping[str, NDArray[Any]], target: Path) -> None:
    """Write a model to the new or empty folder `target` in the format of `transformers`.

    `weights` have the names of `weight_shapes`. For errors, see `GPT2.save`.
    """

    def read(name: str) -> Iterator[NDArray[Any]]:
        yield weights[name].reshape(-1)  # only now: packed weights are copied when they are read

    ids: list[int | None] = list(config.eos_token_ids) or [None]
    entries = {"bos_token_id": ids[0], "eos_token_id": ids if len(ids) > 1 else ids[0]}
    _write(target, config, str(weights[WTE].dtype), {name: read(name) for name in weights}, entries)


def _write(
    target: Path,
    config: GPT2Config,
    dtype: str,
    values: Mapping[str, Iterable[NDArray[Any]]],
    entries: Mapping[str, Any],
    files: Iterable[Path] = (),
) -> None:
    """Write weights in 1-D chunks, config.json with further entries, and copies of files."""
    shapes = weight_shapes(config, head=True)
    tensors = {
        name if name == LM_HEAD else f"transformer.{name}": (shapes[name], chunks)
        for name, chunks in values.items()
    }
    kind = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "dtype": dtype}
    content = {**entries, **asdict(config), **kind, "tie_word_embeddings": LM_HEAD not in values}
    del content["eos_token_ids"]
    text = json.dumps(content, indent=2) + "\n"
    check_new_folder(target)
    with atomic_folder(target.resolve()) as folder:
        write_safetensors(folder / WEIGHTS_FILE, DTYPES[dtype], tensors)
        (folder / CONFIG_FILE).write_text(text, encoding="utf-8", newline="\n")
        for file in files:
            shutil.copyfile(file, folder / file.name)


def check_new_folder(target: Path) -> None:
    """Raise InvalidArgumentError if `target` is not the name of a new or an empty folder."""
    if target in (Path(), Path("-")):
        raise InvalidArgumentError(f"{str(target)!r} is no name of a folder; name a new folder")
    if target.as_posix() in (BUNDLED, *FULL_NAMES, *FULL_NAMES.values()):
        raise InvalidArgumentError(
            f"{target} is the name of a model; gpt2np would load the folder instead of the model; "
            "choose another name"
        )
    resolved = target.resolve()
    is_empty_folder = resolved.is_dir() and not any(resolved.iterdir())
    if target.is_symlink() or (resolved.exists() and not is_empty_folder):
        raise InvalidArgumentError(f"{target} already exists; name a new or an empty folder")


def _companions(folder: Path) -> list[Path]:
    """Return the other files of a model; links must lead to `folder` or the Hub cache."""
    resolved = folder.resolve()
    allowed_parents = (resolved, resolved.parent.parent / "blobs")
    files = {file for pattern in COMPANIONS for file in folder.glob(pattern) if file.is_file()}
    return [file for file in sorted(files) if file.resolve().parent in allowed_parents]
