"""A model's name or path → where its files are: bundled, local, or from Hugging Face.

Where the cache lies, which endpoint is asked, tokens, proxies and offline mode are
huggingface_hub's business (HF_HOME, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, …); it is imported only
when needed.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpt2np.errors import ModelNotFoundError

BUNDLED = "bundled"
DEFAULT_MODEL = "openai-community/gpt2"
DEFAULT_MODEL_NAMES = (DEFAULT_MODEL, "gpt2")  # the second is its old name, still in many caches
MODEL_VARIABLE = "GPT2NP_MODEL"
REACH_SECONDS = 3.0  # how long the Hub may take to answer before the default model is given up

VOCABULARIES = (("tokenizer.json",), ("vocab.json", "merges.txt"))  # either will do


@dataclass(frozen=True)
class FileList:
    """The files that something is made of: one of VOCABULARIES, all `needed`, any `optional`."""

    needed: tuple[str, ...] = ()
    optional: tuple[str, ...] = ("added_tokens.json",)

    @property
    def names(self) -> list[str]:
        """Every file that may be of use."""
        return [*self.needed, *(name for names in VOCABULARIES for name in names), *self.optional]

    def missing(self, exists: Callable[[str], bool]) -> list[str]:
        """What is missing of the files for which `exists` is true."""
        needed = [name for name in self.needed if not exists(name)]
        if any(all(map(exists, names)) for names in VOCABULARIES):
            return needed
        return [*needed, "vocabulary (" + " or ".join(map(" + ".join, VOCABULARIES)) + ")"]


MODEL_FILES = FileList(
    needed=("config.json", "model.safetensors"),
    optional=("generation_config.json", "added_tokens.json"),
)
VOCABULARY_FILES = FileList()


def companion_files() -> list[str]:
    """The names of what belongs to a model beside its config and weights."""
    return [name for name in MODEL_FILES.names if name not in MODEL_FILES.needed]


@dataclass(frozen=True)
class ModelSource:
    """Where a model, or its vocabulary, was found.

    Attributes:
        name: what to call it.
        folder: where its files are; where only a vocabulary was asked for, it may be the one file.
        notice: why it is not the model one would expect, None if it is.
    """

    name: str
    folder: Path
    notice: str | None = None


def find_model(model: str | Path | None = None) -> ModelSource:
    """Find `model`: "bundled", a folder, or a Hub id such as "openai-community/gpt2-medium".

    An existing folder comes before a Hub id, and files in the cache before the network: a model
    that is cached costs no request. None means the environment variable GPT2NP_MODEL, or else GPT-2
    small and, if that is not cached and can't be had from the Hub, the bundled model with a notice.
    A model that was named is that model or an error.

    Raises:
        ModelNotFoundError: there is no such model, or it can't be fetched.
    """
    return _find(_named(model), MODEL_FILES)


def find_vocabulary(model: str | Path | None = None) -> ModelSource:
    """Find the vocabulary of `model` as `find_model` finds models, but none of its weights.

    It may also be the path of a file, such as a `tokenizer.json` or a `.tiktoken` file.

    Raises:
        ModelNotFoundError: there is no such model, or its vocabulary can't be fetched.
    """
    name = _named(model)
    if name and _is_file(name):
        return ModelSource(name, Path(name).expanduser())
    if name and Path(name).suffix in (".json", ".tiktoken"):
        raise ModelNotFoundError(f"there is no file {name}")
    return _find(name, VOCABULARY_FILES)


def _named(model: str | Path | None) -> str | None:
    return (os.environ.get(MODEL_VARIABLE) or None) if model is None else str(model)


def _find(name: str | None, files: FileList) -> ModelSource:
    if name is None:
        return _default_model(files)
    if name == BUNDLED:
        return ModelSource(BUNDLED, _bundled_folder())
    return ModelSource(name, _local_folder(name) or _cached(name, files) or _download(name, files))


def _is_file(name: str) -> bool:
    try:
        return Path(name).expanduser().is_file()
    except (OSError, RuntimeError):
        return False  # what is wrong with the name, _local_folder will say


def _local_folder(name: str) -> Path | None:
    if not name:
        raise ModelNotFoundError("the model's name is empty; name a folder or a model on the Hub")
    try:
        folder = Path(name).expanduser()
        if folder.is_file():
            raise ModelNotFoundError(f"{name} is a file; name the folder that holds it")
        return folder if folder.is_dir() else None
    except (OSError, RuntimeError) as error:
        raise ModelNotFoundError(f"can't look for the folder {name}: {error}") from error


def _bundled_folder() -> Path:
    package = Path(__file__).parent
    for folder in (package / "weights", package.parent / "weights"):  # installed, checkout
        if (folder / "config.json").exists():
            return folder
    raise ModelNotFoundError("this installation of gpt2np has no bundled model; name one instead")


def _default_model(files: FileList) -> ModelSource:
    for name in DEFAULT_MODEL_NAMES:
        if cached := _cached(name, files):
            return ModelSource(name, cached)
    if problem := _unreachable(DEFAULT_MODEL):
        notice = f"{DEFAULT_MODEL} is not cached and {problem}"
        return ModelSource(BUNDLED, _bundled_folder(), notice)
    try:
        return ModelSource(DEFAULT_MODEL, _download(DEFAULT_MODEL, files))
    except ModelNotFoundError as error:
        return ModelSource(BUNDLED, _bundled_folder(), str(error))


def _cached(name: str, files: FileList) -> Path | None:
    """The snapshot of `name` in the local cache, if it holds every file that is needed."""
    _check_hub_id(name)
    from huggingface_hub import try_to_load_from_cache

    cached = {file: try_to_load_from_cache(name, file) for file in files.names}
    paths = {file: Path(path) for file, path in cached.items() if isinstance(path, str)}
    return None if files.missing(paths.__contains__) else next(iter(paths.values())).parent


def _unreachable(name: str) -> str | None:
    """Why the Hub can't be asked for `name` right now, None if it answers in time."""
    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    outcome: list[str | None] = []

    def ask() -> None:
        try:
            HfApi().model_info(name, timeout=REACH_SECONDS)
            outcome.append(None)
        except Exception as error:  # whatever it is, the answer is: not now
            outcome.append(f"{constants.ENDPOINT} did not give it ({_first_line(error)})")

    # A daemon, because name look-ups and retries may take longer than any timeout given.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(REACH_SECONDS)
    late = f"{constants.ENDPOINT} did not answer within {REACH_SECONDS:g} seconds"
    return outcome[0] if outcome else late


def _download(name: str, files: FileList) -> Path:
    """Fetch `name` into the cache, with huggingface_hub's progress bars on stderr."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        folder = Path(snapshot_download(name, allow_patterns=files.names))
    except GatedRepoError:
        raise ModelNotFoundError(
            f"{name} needs its owner's permission: ask for it on {constants.ENDPOINT}/{name} and "
            "set HF_TOKEN"
        ) from None
    except RepositoryNotFoundError:
        raise ModelNotFoundError(
            f"there is no folder {name} and no model of that name on {constants.ENDPOINT} "
            "(for a private one, set HF_TOKEN)"
        ) from None
    except Exception as error:  # its HTTP library's errors have no class in common with its own
        all_needed = _listed(files.missing(lambda _: False))
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _first_line(error)
        raise ModelNotFoundError(
            f"{name} is neither a folder nor in the Hugging Face cache, and can't be fetched from "
            f"{constants.ENDPOINT} ({why}); without a network, put {all_needed} into a "
            f"folder and name that, or use the model {BUNDLED!r}"
        ) from None
    if missing := files.missing(lambda file: (folder / file).exists()):
        raise ModelNotFoundError(
            f"{name} on {constants.ENDPOINT} has no {_listed(missing)}, without which gpt2np "
            "can't use it"
        )
    return folder


def _check_hub_id(name: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ModelNotFoundError(
            f"there is no folder {name}, and it can't be the name of a model on the Hub"
        ) from error


def _listed(names: list[str]) -> str:
    return ", ".join(names)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
