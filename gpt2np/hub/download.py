"""Downloads of models into the Hugging Face cache, by huggingface_hub, and why they failed."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, errors, snapshot_download
from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

from gpt2np.errors import ModelNotFoundError
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
from gpt2np.hub.repository import HubId, cache_folder, missing_in_cache

# The classes of HTTP errors differ between the versions of huggingface_hub.
_HTTP_LIBRARIES = {"httpcore", "httpcore2", "httpx", "httpx2", "huggingface_hub", "requests"}


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
        if not _is_failure(error):
            raise
        raise _translate(model, error, weights=weights) from error


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
        return ModelNotFoundError(
            f"{model} on {constants.ENDPOINT} has no {WEIGHTS_FILE}, only {pickles[0]}, a pickle; "
            "gpt2np never downloads pickles, because they can run code; "
            f"{conversion_advice(model.repository)}"
        )
    return ModelNotFoundError(
        f"{model} on {constants.ENDPOINT} has no {', '.join(missing)}, which gpt2np requires; "
        "choose another model or revision"
    )


def _is_failure(error: Exception) -> bool:
    """Tell whether the Hub, the network or the disk has caused an error, not a bug."""
    modules = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    is_network = isinstance(error, (OSError, json.JSONDecodeError)) or modules & _HTTP_LIBRARIES
    return bool(is_network) or type(error) is RuntimeError  # hf_xet raises RuntimeError


def _translate(model: HubId, error: Exception, *, weights: bool) -> ModelNotFoundError:
    """Return the error that says in one line why `model` was not downloaded."""
    chain = list(_causes(error))
    http_errors = [cause for cause in chain if isinstance(cause, errors.HfHubHTTPError)]
    answered = next((cause for cause in http_errors if cause.response is not None), None)
    disk_error = next((e for e in chain if isinstance(e, OSError) and _is_of_disk(e)), None)
    if isinstance(error, errors.HFValidationError) and not isinstance(error, OSError):
        message = (
            f"there is no folder {model}, and the name is not a valid id on the Hub; expected a "
            "folder, owner/name or owner/name@REVISION"
        )
    elif constants.HF_HUB_OFFLINE:
        message = _not_cached(model, weights, "HF_HUB_OFFLINE is set; unset it, or")
    elif disk_error:
        message = (
            f"cannot read or write {disk_error.filename or cache_folder()} "
            f"({disk_error.strerror}); set HF_HOME to a writable folder with enough free space"
        )
    elif answered:
        message = _answer(model, answered)
    else:
        system_errors = [e for e in chain if isinstance(e, OSError) and e.errno and e.strerror]
        last = [error, *system_errors][-1]
        reason = " ".join(str(last).split()) or type(last).__name__
        problem = f"the download from {constants.ENDPOINT} failed ({reason})"
        message = _not_cached(model, weights, f"{problem}; try again; without a network,")
    return ModelNotFoundError(message)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its chain of causes, outermost first."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _is_of_disk(error: OSError) -> bool:
    return bool(error.errno) and bool(
        error.filename or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
    )


def _answer(model: HubId, error: errors.HfHubHTTPError) -> str:
    """Return the error message for an answer of the Hub with an HTTP status, in its words."""
    text = " ".join(str(error).split())
    if isinstance(error, errors.GatedRepoError):
        return f"{model} is gated; set HF_TOKEN to a token of an account with access: {text}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"there is no folder {model}, and no model that HF_TOKEN may read: {text}"
    return f"{constants.ENDPOINT} does not serve {model}: {text}"


def _not_cached(model: HubId, weights: bool, problem: str) -> str:
    """Return the error message for a model that is not in the cache, and what to do instead."""
    missing = missing_in_cache(model, weights=weights)
    state = (
        f"is in the cache {cache_folder()} without {', '.join(missing)}"
        if missing
        else f"is neither a folder nor in the cache {cache_folder()}"
    )
    required = ", ".join(missing_files(lambda _: False, weights=weights))
    return f"{model} {state}, and {problem} name a folder with {required}"
