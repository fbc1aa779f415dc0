"""What is already in the Hugging Face cache. Looking there costs no request."""

from __future__ import annotations

from pathlib import Path

from gpt2np.hub.files import FileList
from gpt2np.hub.names import HubId


def cached(model: HubId, files: FileList) -> Path | None:
    """The folder of `model`, under any of its names, if it holds every file that is needed."""
    folders = _snapshots(model, files)
    return next((folder for folder in folders if not files.missing_in(folder)), None)


def missing_in_cache(model: HubId, files: FileList) -> list[str]:
    """What the cache lacks of a model that it has in part; [] if it has nothing of it."""
    return next((files.missing_in(folder) for folder in _snapshots(model, files)), [])


def cache_folder() -> Path:
    """Where models are cached, whether it exists or not."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def repository_folder(repository: str) -> Path:
    """Where the cache keeps what it has of `repository`."""
    from huggingface_hub.file_download import repo_folder_name

    return cache_folder() / repo_folder_name(repo_id=repository, repo_type="model")


def _snapshots(model: HubId, files: FileList) -> list[Path]:
    from huggingface_hub import try_to_load_from_cache

    folders = []
    names = {*files.needed, *(n for choice in files.choices for way in choice.ways for n in way)}
    for repository in model.known_as:
        found = [try_to_load_from_cache(repository, n, revision=model.revision) for n in names]
        folders += [Path(path).parent for path in found if isinstance(path, str)][:1]
    return folders
