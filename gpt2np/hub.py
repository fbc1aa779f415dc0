"""A model's name or path → the folder with its files: bundled, local, or from Hugging Face.

Where the cache lies, which endpoint is asked, tokens, proxies and offline mode are
huggingface_hub's business (HF_HOME, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, …); it is imported only
when needed.
"""

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from gpt2np.errors import ModelNotFoundError

BUNDLED = "bundled"
DEFAULT_MODEL = "openai-community/gpt2"
DEFAULT_MODEL_NAMES = (DEFAULT_MODEL, "gpt2")  # the second is its old name, still in many caches
MODEL_VARIABLE = "GPT2NP_MODEL"
REACH_SECONDS = 3.0  # how long the Hub may take to answer before the default model is given up

NEEDED_FILES = ("config.json", "model.safetensors", "vocab.json", "merges.txt")
OPTIONAL_FILES = ("generation_config.json",)


@dataclass(frozen=True)
class ModelSource:
    """Where a model was found.

    Attributes:
        name: what to call it.
        folder: where its files are.
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
    name = (os.environ.get(MODEL_VARIABLE) or None) if model is None else str(model)
    if name is None:
        return _default_model()
    if name == BUNDLED:
        return ModelSource(BUNDLED, _bundled_folder())
    return ModelSource(name, _local_folder(name) or _cached(name) or _download(name))


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


def _default_model() -> ModelSource:
    for name in DEFAULT_MODEL_NAMES:
        if cached := _cached(name):
            return ModelSource(name, cached)
    if problem := _unreachable(DEFAULT_MODEL):
        notice = f"{DEFAULT_MODEL} is not cached and {problem}"
        return ModelSource(BUNDLED, _bundled_folder(), notice)
    try:
        return ModelSource(DEFAULT_MODEL, _download(DEFAULT_MODEL))
    except ModelNotFoundError as error:
        return ModelSource(BUNDLED, _bundled_folder(), str(error))


def _cached(name: str) -> Path | None:
    """The snapshot of `name` in the local cache, if it holds every file that is needed."""
    _check_hub_id(name)
    from huggingface_hub import try_to_load_from_cache

    paths = [try_to_load_from_cache(name, file) for file in NEEDED_FILES]
    return Path(str(paths[0])).parent if all(isinstance(path, str) for path in paths) else None


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


def _download(name: str) -> Path:
    """Fetch `name` into the cache, with huggingface_hub's progress bars on stderr."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        folder = Path(snapshot_download(name, allow_patterns=[*NEEDED_FILES, *OPTIONAL_FILES]))
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
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _first_line(error)
        raise ModelNotFoundError(
            f"{name} is neither a folder nor in the Hugging Face cache, and can't be fetched from "
            f"{constants.ENDPOINT} ({why}); without a network, put {', '.join(NEEDED_FILES)} into "
            f"a folder and name that, or use the model {BUNDLED!r}"
        ) from None
    if missing := [file for file in NEEDED_FILES if not (folder / file).exists()]:
        raise ModelNotFoundError(
            f"{name} on {constants.ENDPOINT} has no {', '.join(missing)}; gpt2np needs a GPT-2 "
            "model in the safetensors format"
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


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
