"""Downloads of models into the Hugging Face cache, by huggingface_hub."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

from gpt2np.errors import ModelNotFoundError
from gpt2np.hub.failures import is_failure, translate
from gpt2np.hub.model_files import (
    INDEX_FILE,
    OPTIONAL_FILES,
    VOCABULARY_EXTRAS,
    VOCABULARY_FILES,
    WEIGHTS_FILE,
    conversion_advice,
    find_pickles,
    list_weight_files,
    missing_files,
    missing_in,
)
from gpt2np.hub.repository import HubId


class _TerminalBar(tqdm):
    """A progress bar that is shown only on a terminal."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"disable": None, **options})  # type: ignore[no-untyped-call]


def download(model: HubId, *, weights: bool, timeout: float | None = None) -> Path:
    """Download a model or, without `weights`, its vocabulary; return the snapshot's folder.

    Files in the cache are not downloaded again. Other processes may download the same files at the
    same time. On a terminal, stderr shows a progress bar. `timeout` is the number of seconds to
    wait for the list of the files.

    Raises:
        ModelNotFoundError: the model does not exist, or the download fails.
        CheckpointError: the index of sharded weights is damaged.
    """
    try:
        info = HfApi().model_info(
            model.repository,
            revision=model.revision,
            timeout=timeout or constants.HF_HUB_ETAG_TIMEOUT,
        )
        listing = {file.rfilename for file in info.siblings or ()}
        if missing := missing_files(listing.__contains__, weights=weights):
            raise _incomplete(model, missing, listing)
        with _attempts_unreported():
            return _download(model, listing, weights)
    except Exception as error:
        if not is_failure(error):
            raise
        raise translate(model, error, weights=weights) from error


@contextmanager
def _attempts_unreported() -> Iterator[None]:
    """Silence huggingface_hub's log of failed attempts, unless HF_HUB_VERBOSITY is set."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    if "HF_HUB_VERBOSITY" not in os.environ:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _download(model: HubId, listing: Collection[str], weights: bool) -> Path:
    """Download the optional files first: with all required files, the cache is complete."""
    first, last = {"config.json", *VOCABULARY_EXTRAS}, {*VOCABULARY_FILES}
    if weights:
        first, last = {*OPTIONAL_FILES}, {"config.json", *VOCABULARY_FILES, WEIGHTS_FILE}
    is_sharded = weights and WEIGHTS_FILE not in listing
    if is_sharded:
        first.add(INDEX_FILE)
    if folder := _fetch(model, first & {*listing}):
        shards = list_weight_files(folder)[1:] if is_sharded else []
        if missing := [name for name in shards if name not in listing]:
            raise _incomplete(model, missing, listing)
        last.update(shards)
    folder = _fetch(model, last & {*listing})
    assert folder is not None  # `download` has found required files
    if missing := missing_in(folder, weights=weights):
        raise _incomplete(model, missing, listing)
    return folder


def _fetch(model: HubId, names: Collection[str]) -> Path | None:
    if not names:
        return None
    return Path(
        snapshot_download(
            model.repository,
            revision=model.revision,
            allow_patterns=sorted(names),
            tqdm_class=_TerminalBar,
        )
    )


def _incomplete(
    model: HubId, missing: Collection[str], listing: Collection[str]
) -> ModelNotFoundError:
    """Return the error for a repository whose `listing` of files lacks the `missing` files."""
    pickles = find_pickles(name for name in listing if "/" not in name)
    if WEIGHTS_FILE in missing and pickles:
        advice = conversion_advice(model.repository, model.revision)
        return ModelNotFoundError(
            f"{model} on {constants.ENDPOINT} has no {WEIGHTS_FILE}, only {pickles[0]}, a pickle; "
            f"gpt2np never downloads pickles, because they can run code; {advice}"
        )
    return ModelNotFoundError(
        f"{model} on {constants.ENDPOINT} has no {', '.join(missing)}, which gpt2np requires; "
        "choose another model or revision"
    )
