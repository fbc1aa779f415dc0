"""Search for a model in this order: a folder, the bundled model, the cache, the Hub."""

import os
import threading
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
    MODEL_FILES,
    UNSUPPORTED_SUFFIXES,
    VOCABULARY_FILES,
    WEIGHTS_FILE,
    FileSet,
)
from gpt2np.hub.repository import FULL_NAMES, HubId, check_hub_variables, find_cached, parse_hub_id

BUNDLED = "bundled"
DEFAULT_MODEL = HubId("openai-community/gpt2")
MODEL_VARIABLE = "GPT2NP_MODEL"
DEFAULT_MODEL_TIMEOUT_S = 3.0  # if the Hub has not answered by then, the bundled model is used


@dataclass(frozen=True)
class ModelSource:
    """Location of the files of a model or a vocabulary."""

    name: str  # for messages; characters that can't be printed are escaped
    path: Path  # the folder of the files; from `find_vocabulary` perhaps a single file
    fallback_reason: str | None = None  # why the bundled model replaces the default model
    hub_id: HubId | None = None  # None if the model does not come from the Hub


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
    return _find(_model_name(model), MODEL_FILES)


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
    return _find(name, VOCABULARY_FILES)


def _model_name(model: str | Path | None) -> str | None:
    if model is None:
        return os.environ.get(MODEL_VARIABLE) or None
    if not isinstance(model, (str, os.PathLike)):
        raise InvalidArgumentError(f"the model is {short_repr(model)}; it must be a name or a path")
    return os.fsdecode(model)


def _find(name: str | None, files: FileSet) -> ModelSource:
    if name is None:
        return _find_default(files)
    if folder := _local_folder(name):
        return ModelSource(printable(name), folder)
    if name == BUNDLED:
        return ModelSource(BUNDLED, _bundled_folder())
    hub_id = parse_hub_id(name)
    if folder := find_cached(hub_id, files):
        return ModelSource(name, folder, hub_id=hub_id)
    from gpt2np.hub.download import download  # slow to import

    try:
        return ModelSource(name, download(hub_id, files), hub_id=hub_id)
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


def _find_default(files: FileSet) -> ModelSource:
    check_hub_variables()
    name = str(DEFAULT_MODEL)
    if folder := find_cached(DEFAULT_MODEL, files):
        return ModelSource(name, folder, hub_id=DEFAULT_MODEL)
    from gpt2np.hub.download import download

    try:
        listing = _list_files_in_time(DEFAULT_MODEL)
        folder = download(DEFAULT_MODEL, files, listing)
    except ModelNotFoundError as error:
        return ModelSource(BUNDLED, _bundled_folder(), fallback_reason=str(error))
    return ModelSource(name, folder, hub_id=DEFAULT_MODEL)


def _list_files_in_time(model: HubId) -> frozenset[str]:
    """List a model's files on the Hub; ModelNotFoundError after DEFAULT_MODEL_TIMEOUT_S seconds."""
    from huggingface_hub import constants

    from gpt2np.hub.download import list_files
    from gpt2np.hub.failures import root_cause

    if constants.HF_HUB_OFFLINE:
        raise ModelNotFoundError(f"{model} is not cached and HF_HUB_OFFLINE is set")
    timeout = DEFAULT_MODEL_TIMEOUT_S
    outcome: list[frozenset[str] | str] = []

    def request() -> None:
        try:
            outcome.append(list_files(model, timeout))
        except Exception as error:  # any failure means the bundled model
            outcome.append(f"{constants.ENDPOINT} did not list its files ({root_cause(error)})")

    # A daemon thread, because name look-ups and retries can exceed the timeout.
    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    thread.join(timeout)
    late = f"{constants.ENDPOINT} did not answer within {timeout:g} seconds"
    result = outcome[0] if outcome else late
    if isinstance(result, str):
        raise ModelNotFoundError(f"{model} is not cached and {result}")
    return result
