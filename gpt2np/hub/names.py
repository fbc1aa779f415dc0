"""What a model is called on the Hub: `owner/name`, a short name, either with `@revision`."""

from __future__ import annotations

from dataclasses import dataclass

from gpt2np.errors import ModelNotFoundError

FULL_NAMES = {
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "gpt2-xl": "openai-community/gpt2-xl",
    "distilgpt2": "distilbert/distilgpt2",
}
"""Short names, from when the Hub knew no owners; many caches hold the models under these."""
_SHORT_NAMES = {full: short for short, full in FULL_NAMES.items()}
_NOT_IN_REVISIONS = frozenset(" ~^:?*[\\")  # by git's rules for names of branches and tags


@dataclass(frozen=True)
class HubId:
    """A repository on the Hub, and which state of it.

    Attributes:
        repository: `owner/name`.
        revision: a branch, tag or commit; None for the main branch.
    """

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.repository + (f"@{self.revision}" if self.revision else "")

    @property
    def known_as(self) -> list[str]:
        """The names under which it may be in a cache."""
        short = _SHORT_NAMES.get(self.repository)
        return [self.repository, short] if short else [self.repository]


def hub_id(name: str) -> HubId:
    """Take a model's name apart.

    Raises:
        ModelNotFoundError: nothing on the Hub can have this name.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    repository, at, revision = name.partition("@")
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ModelNotFoundError(
            f"there is no folder {name}, and it can't be the name of a model on the Hub"
        ) from error
    if at and not _may_be_revision(revision):
        raise ModelNotFoundError(
            f"there is no folder {name}, and {revision!r} can't be a revision; expected "
            f"{repository}@REVISION with a branch, a tag or a commit"
        )
    return HubId(FULL_NAMES.get(repository, repository), revision or None)


def _may_be_revision(text: str) -> bool:
    return (
        bool(text)
        and text.isprintable()
        and _NOT_IN_REVISIONS.isdisjoint(text)
        and ".." not in text
        and not text.startswith(("/", "-"))
    )
