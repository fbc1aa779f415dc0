"""A model's name or path → where its files are: bundled, local, or from Hugging Face."""

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from gpt2np.errors import InvalidArgumentError, ModelNotFoundError, short_repr
from gpt2np.hub.cache import cached
from gpt2np.hub.files import MODEL_FILES, VOCABULARY_FILES, FileList
from gpt2np.hub.names import HubId, hub_id
from gpt2np.hub.weight_files import INDEX_FILE, WEIGHTS_FILE

BUNDLED = "bundled"
DEFAULT_MODEL = HubId("openai-community/gpt2")
MODEL_VARIABLE = "GPT2NP_MODEL"
REACH_SECONDS = 3.0  # how long the Hub may take to answer before the default model is given up

VOCABULARY_SUFFIXES = (".json", ".tiktoken")


@dataclass(frozen=True)
class ModelSource:
    """Where a model, or its vocabulary, was found.

    Attributes:
        name: what to call it.
        folder: where its files are; where only a vocabulary was asked for, it may be the one file.
        fallback_reason: why it is not the model one would expect, None if it is.
        on_hub: what it is on the Hub, None if it did not come from there.
    """

    name: str
    folder: Path
    fallback_reason: str | None = None
    on_hub: HubId | None = None


def find_model(model: str | Path | None = None) -> ModelSource:
    """Find `model`: "bundled", a folder, or a Hub id such as "openai-community/gpt2-medium".

    A Hub id may have a revision, a branch, tag or commit: "openai-community/gpt2@main". Instead of
    a folder its `model.safetensors` may be named. What exists comes before a Hub id, and files in
    the cache before the network: a model that is cached costs no request. None means the
    environment variable GPT2NP_MODEL, or else GPT-2 small and, if that is not cached and can't be
    had from the Hub, the bundled model with a notice. A model that was named is that model or an
    error.

    Raises:
        InvalidArgumentError: `model` is neither a text nor a path.
        ModelNotFoundError: there is no such model, or it can't be fetched.
        CheckpointError: the index of its weights is damaged.
    """
    return _find(_named(model), MODEL_FILES)


def find_vocabulary(model: str | Path | None = None) -> ModelSource:
    """Find the vocabulary of `model` as `find_model` finds models, but none of its weights.

    It may also be the path of a file, such as a `tokenizer.json` or a `.tiktoken` file.

    Raises:
        InvalidArgumentError: `model` is neither a text nor a path.
        ModelNotFoundError: there is no such model, or its vocabulary can't be fetched.
    """
    name = _named(model)
    path = _existing(name) if name else None
    if name and path and path.is_file() and _folder_of_weights(path) is None:
        return ModelSource(name, path)
    if name and path is None and Path(name).suffix in VOCABULARY_SUFFIXES:
        raise ModelNotFoundError(f"there is no file {name}")
    return _find(name, VOCABULARY_FILES)


def _named(model: str | Path | None) -> str | None:
    if model is None:
        return os.environ.get(MODEL_VARIABLE) or None
    if not isinstance(model, (str, os.PathLike)):
        raise InvalidArgumentError(f"the model is {short_repr(model)}; it must be a name or a path")
    return os.fsdecode(model)


def _find(name: str | None, files: FileList) -> ModelSource:
    if name is None:
        return _default_model(files)
    if folder := _local_folder(name):
        return ModelSource(name, folder)
    if name == BUNDLED:
        return ModelSource(BUNDLED, _bundled_folder())
    on_hub = hub_id(name)
    if folder := cached(on_hub, files):
        return ModelSource(name, folder, on_hub=on_hub)
    from gpt2np.hub.fetch import fetch  # only here: it is much to import for those who need it not

    return ModelSource(name, fetch(on_hub, files), on_hub=on_hub)


def _existing(name: str) -> Path | None:
    """The path of that name, if there is one."""
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError) as error:
        raise ModelNotFoundError(f"can't look for the folder {name}: {error}") from error


def _local_folder(name: str) -> Path | None:
    if not name:
        raise ModelNotFoundError("the model's name is empty; name a folder or a model on the Hub")
    path = _existing(name)
    if path is None:
        if Path(name).name in (WEIGHTS_FILE, INDEX_FILE):
            raise ModelNotFoundError(f"there is no file {name}")
        return None
    if path.is_dir():
        return path
    if folder := _folder_of_weights(path):
        return folder
    raise ModelNotFoundError(f"{name} is a file; name the folder that holds it")


def _folder_of_weights(file: Path) -> Path | None:
    """The folder of a model whose weights were named instead."""
    named = file.name in (WEIGHTS_FILE, INDEX_FILE)
    return file.parent if named and (file.parent / "config.json").is_file() else None


def _bundled_folder() -> Path:
    package = Path(__file__).parent.parent
    for folder in (package / "weights", package.parent / "weights"):  # installed, checkout
        if (folder / "config.json").exists():
            return folder
    raise ModelNotFoundError("this installation of gpt2np has no bundled model; name one instead")


def _default_model(files: FileList) -> ModelSource:
    name = str(DEFAULT_MODEL)
    if folder := cached(DEFAULT_MODEL, files):
        return ModelSource(name, folder, on_hub=DEFAULT_MODEL)
    from gpt2np.hub.fetch import fetch

    try:
        listing = _listing_in_time(DEFAULT_MODEL)
        folder = fetch(DEFAULT_MODEL, files, listing)
    except ModelNotFoundError as error:
        return ModelSource(BUNDLED, _bundled_folder(), fallback_reason=str(error))
    return ModelSource(name, folder, on_hub=DEFAULT_MODEL)


def _listing_in_time(model: HubId) -> frozenset[str]:
    """What is in `model`, if the Hub says so within REACH_SECONDS.

    Raises:
        ModelNotFoundError: it doesn't.
    """
    from huggingface_hub import constants

    from gpt2np.hub.failures import reason
    from gpt2np.hub.fetch import list_files

    if constants.HF_HUB_OFFLINE:
        raise ModelNotFoundError(f"{model} is not cached and HF_HUB_OFFLINE is set")
    listings: list[frozenset[str]] = []
    problems: list[str] = []

    def ask() -> None:
        try:
            listings.append(list_files(model, REACH_SECONDS))
        except Exception as error:  # whatever it is, the answer is: not now
            problems.append(f"{constants.ENDPOINT} did not give it ({reason(error)})")

    # A daemon, because name look-ups and retries may take longer than any timeout given.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(REACH_SECONDS)
    if listings:
        return listings[0]
    late = f"{constants.ENDPOINT} did not answer within {REACH_SECONDS:g} seconds"
    raise ModelNotFoundError(f"{model} is not cached and {problems[0] if problems else late}")
