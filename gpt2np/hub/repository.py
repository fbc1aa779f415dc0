"""A model repository on the Hub: its id, and its snapshots in the local cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpt2np.errors import ModelNotFoundError, short_repr
from gpt2np.hub.model_files import missing_in

BUNDLED = "bundled"
FULL_NAMES = {
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "gpt2-xl": "openai-community/gpt2-xl",
    "distilgpt2": "distilbert/distilgpt2",
}
"""Maps old Hub names, which had no owner, to full names; many caches still use the old names."""

_SHORT_NAMES = {full: short for short, full in FULL_NAMES.items()}


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


def parse_hub_id(name: str) -> HubId:
    """Parse `owner/name` or a short name such as `gpt2`, with an optional `@revision`."""
    repository, _, revision = name.partition("@")
    return HubId(FULL_NAMES.get(repository, repository), revision or None)


def find_cached(model: HubId, *, weights: bool) -> Path | None:
    """Return the folder of a complete cached snapshot of `model`, or None. Sends no request.

    Raises ModelNotFoundError if the cache is damaged.
    """
    folders = _cached_snapshots(model)
    return next((folder for folder in folders if not missing_in(folder, weights=weights)), None)


def missing_in_cache(model: HubId, *, weights: bool) -> list[str]:
    """Return the files that the first cached snapshot of `model` lacks; [] without a snapshot."""
    folder = next((folder for folder in _cached_snapshots(model) if folder.is_dir()), None)
    return missing_in(folder, weights=weights) if folder else []


def _cached_snapshots(model: HubId) -> Iterator[Path]:
    """Yield the folders where huggingface_hub would put the snapshot; they may not exist."""
    revision = model.revision or "main"
    for repository in model.cache_names:
        folder = cache_folder() / f"models--{repository.replace('/', '--')}"
        reference = folder / "refs" / revision
        try:
            commit = reference.read_text("ascii") if reference.is_file() else revision
            yield folder / "snapshots" / commit.strip()
        except (ValueError, OSError) as error:  # such as a binary file refs/main
            raise ModelNotFoundError(
                f"the cache of {repository} is damaged ({short_repr(str(error))}); remove the "
                f"folder {folder / 'refs'} and try again"
            ) from error


def cache_folder() -> Path:
    """Return the folder of the Hugging Face cache. The folder may not exist yet."""
    try:
        from huggingface_hub import constants  # the package itself would take 0.15 s to import
    except ValueError as error:
        raise ModelNotFoundError(f"huggingface_hub cannot read a variable HF_…: {error}") from error

    return Path(constants.HF_HUB_CACHE).expanduser()
