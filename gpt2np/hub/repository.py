"""A model repository on the Hub: its id, and its snapshots in the local cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpt2np.errors import InvalidArgumentError, ModelNotFoundError, short_repr
from gpt2np.hub.model_files import FileSet

FULL_NAMES = {
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "gpt2-xl": "openai-community/gpt2-xl",
    "distilgpt2": "distilbert/distilgpt2",
}
"""Maps old Hub names, which had no owner, to full names; many caches still use the old names."""

_SHORT_NAMES = {full: short for short, full in FULL_NAMES.items()}
_NOT_IN_REVISIONS = frozenset(" ~^:?*[\\")  # git's rules for names of branches and tags


@dataclass(frozen=True)
class HubId:
    """The id of a model on the Hub, with an optional revision."""

    repository: str  # `owner/name`
    revision: str | None = None  # a branch, tag or commit; None for the main branch

    def __str__(self) -> str:
        return self.repository + (f"@{self.revision}" if self.revision else "")

    @property
    def cache_names(self) -> list[str]:
        """The repository's possible names in the cache: its id, and a short name like "gpt2"."""
        short = _SHORT_NAMES.get(self.repository)
        return [self.repository, short] if short else [self.repository]


def check_hub_variables() -> None:
    """Raise InvalidArgumentError if an environment variable would break huggingface_hub."""
    for name in ("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"):
        if not (value := os.environ.get(name, "0")).isdecimal():
            raise InvalidArgumentError(f"{name} is {value!r}; expected a number of seconds")
    if not _is_address(endpoint := os.environ.get("HF_ENDPOINT") or "https://huggingface.co"):
        raise InvalidArgumentError(
            f"HF_ENDPOINT is {short_repr(endpoint)}; expected an address such as "
            "https://huggingface.co"
        )


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # such as a port that is no number
        return False


def parse_hub_id(name: str) -> HubId:
    """Parse `owner/name` or a short name such as `gpt2`, with an optional `@revision`.

    Raises ModelNotFoundError if the name or the revision is invalid.
    """
    check_hub_variables()
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    repository, separator, revision = name.partition("@")
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ModelNotFoundError(
            f"there is no folder {name}, and the name is not a valid id on the Hub; expected a "
            "folder or owner/name"
        ) from error
    if separator and not _is_revision(revision):
        raise ModelNotFoundError(
            f"there is no folder {name}, and {revision!r} is not a valid revision; expected "
            f"{repository}@REVISION with a branch, tag or commit"
        )
    return HubId(FULL_NAMES.get(repository, repository), revision or None)


def _is_revision(text: str) -> bool:
    return (
        bool(text)
        and text.isprintable()
        and _NOT_IN_REVISIONS.isdisjoint(text)
        and ".." not in text
        and not text.startswith(("/", "-"))
    )


def find_cached(model: HubId, files: FileSet) -> Path | None:
    """Return the folder of a complete cached snapshot of `model`, or None. Sends no request."""
    snapshots = _cached_snapshots(model, files)
    return next((folder for folder in snapshots if not files.missing_in(folder)), None)


def missing_in_cache(model: HubId, files: FileSet) -> list[str]:
    """Return the files that the first cached snapshot of `model` lacks; [] without a snapshot."""
    return next((files.missing_in(folder) for folder in _cached_snapshots(model, files)), [])


def _cached_snapshots(model: HubId, files: FileSet) -> list[Path]:
    from huggingface_hub import try_to_load_from_cache

    folders = []
    for repository in model.cache_names:
        try:
            paths = [
                try_to_load_from_cache(repository, name, revision=model.revision)
                for name in files.names
            ]
        except (ValueError, OSError) as error:  # such as a binary file refs/main
            raise ModelNotFoundError(
                f"the cache of {repository} is damaged ({short_repr(str(error))}); remove the "
                f"folder {repository_folder(repository) / 'refs'} and try again"
            ) from error
        folders += [Path(path).parent for path in paths if isinstance(path, str)][:1]
    return folders


def cache_folder() -> Path:
    """Return the folder of the Hugging Face cache. The folder may not exist yet."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def repository_folder(repository: str) -> Path:
    """Return the folder of a repository in the cache."""
    from huggingface_hub.file_download import repo_folder_name

    return cache_folder() / repo_folder_name(repo_id=repository, repo_type="model")
