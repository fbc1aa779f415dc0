"""Search for a model in this order: a folder, the bundled model, the cache, the Hub."""

import os
from dataclasses import dataclass
from pathlib import Path

from gpt2np.errors import (
    SEE_MISSING_FEATURES,
    InvalidArgumentError,
    ModelNotFoundError,
    did_you_mean,
    error_reason,
    printable,
    short_repr,
)
from gpt2np.hub.model_files import (
    INDEX_FILE,
    UNSUPPORTED_SUFFIXES,
    WEIGHTS_FILE,
)
from gpt2np.hub.repository import BUNDLED, FULL_NAMES, HubId, find_cached, parse_hub_id

DEFAULT_MODEL = HubId("openai-community/gpt2")
MODEL_VARIABLE = "GPT2NP_MODEL"
DEFAULT_MODEL_TIMEOUT_S = 3.0  # if the Hub has not answered by then, the bundled model is used


@dataclass(frozen=True)
class ModelSource:
    """Location of the files of a model or a vocabulary."""

    name: str  # for messages; characters that can't be printed are escaped
    path: Path  # the folder of the files; from `find_vocabulary` perhaps a single file
    fallback_reason: str | None = None  # why the bundled model replaces the default model


def find_model(model: str | Path | None = None) -> ModelSource:
    """Find a model, and download it if necessary.

    `model` can be "bundled", a folder, the path of a `model.safetensors`, or an id on the Hub, such
    as "openai-community/gpt2-medium". An id can name a branch, tag or commit after "@", as in
    "gpt2@main". An existing folder takes precedence over an id. A cached model is found without a
    request.

    If `model` is None, the environment variable GPT2NP_MODEL names the model. If the variable is
    not set, the model is GPT-2 small. If GPT-2 small is not cached and can't be downloaded, the
    result is the bundled model, and `fallback_reason` says why.

    Raises:
        InvalidArgumentError: `model` is neither a string nor a path.
        ModelNotFoundError: there is no such model, or the download fails.
        CheckpointError: the index of the model's weights is damaged.
    """
    return _find(_model_name(model), weights=True)


def find_vocabulary(model: str | Path | None = None) -> ModelSource:
    """Find a model's vocabulary, without the weights, in the places where `find_model` looks.

    `model` may also be the path of a file, such as a `tokenizer.json`.

    Raises:
        InvalidArgumentError: `model` is neither a string nor a path.
        ModelNotFoundError: there is no such model, or the download fails.
    """
    name = _model_name(model)
    path = _existing_path(name) if name else None
    if name and path and path.is_file() and _folder_of_weights(path) is None:
        return ModelSource(printable(name), path)
    if name and path is None and Path(name).suffix == ".json":
        raise ModelNotFoundError(f"there is no file {name}")
    return _find(name, weights=False)


def _model_name(model: str | Path | None) -> str | None:
    if model is None:
        return os.environ.get(MODEL_VARIABLE) or None
    if not isinstance(model, (str, os.PathLike)):
        raise InvalidArgumentError(f"the model is {short_repr(model)}; it must be a name or a path")
    return os.fsdecode(model)


def _find(name: str | None, *, weights: bool) -> ModelSource:
    if name is None:
        try:
            path = _from_hub(DEFAULT_MODEL, weights, DEFAULT_MODEL_TIMEOUT_S)
            return ModelSource(str(DEFAULT_MODEL), path)
        except ModelNotFoundError as error:
            return ModelSource(BUNDLED, _bundled_folder(), fallback_reason=str(error))
    if folder := _local_folder(name):
        return ModelSource(printable(name), folder)
    if name == BUNDLED:
        return ModelSource(BUNDLED, _bundled_folder())
    hub_id = parse_hub_id(name)
    try:
        return ModelSource(name, _from_hub(hub_id, weights))
    except ModelNotFoundError as error:
        known = (BUNDLED, *FULL_NAMES, *FULL_NAMES.values())
        hint = "" if name in known else did_you_mean(name, known)
        raise ModelNotFoundError(f"{error}{hint}") from error


def _existing_path(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError) as error:
        raise ModelNotFoundError(
            f"cannot look up the folder {name}: {error_reason(error)}"
        ) from error


def _local_folder(name: str) -> Path | None:
    if not name:
        raise ModelNotFoundError("the model's name is empty; name a folder or a model on the Hub")
    path = _existing_path(name)
    if path is None:
        if Path(name).name in (WEIGHTS_FILE, INDEX_FILE):
            raise ModelNotFoundError(f"there is no file {name}")
        return None
    if path.is_dir():
        return path
    if folder := _folder_of_weights(path):
        return folder
    if path.suffix in UNSUPPORTED_SUFFIXES:
        raise ModelNotFoundError(
            f"{name} is a {path.suffix} file; gpt2np reads safetensors only; name the folder of "
            f"a model, or {SEE_MISSING_FEATURES}"
        )
    raise ModelNotFoundError(f"{name} is a file; name the folder that contains it")


def _folder_of_weights(file: Path) -> Path | None:
    """Return the folder of `file` if it is the weight file or index of a model, else None."""
    is_weights = file.name in (WEIGHTS_FILE, INDEX_FILE)
    return file.parent if is_weights and (file.parent / "config.json").is_file() else None


def _bundled_folder() -> Path:
    package = Path(__file__).parent.parent
    for folder in (package / "weights", package.parent / "weights"):  # installed, checkout
        if (folder / "config.json").exists():
            return folder
    raise ModelNotFoundError("this installation of gpt2np has no bundled model; name another model")


def _from_hub(model: HubId, weights: bool, timeout: float | None = None) -> Path:
    """Return the folder of a model in the cache; download the model if necessary."""
    if folder := find_cached(model, weights=weights):
        return folder
    from gpt2np.hub.download import download  # slow to import

    return download(model, weights=weights, timeout=timeout)
