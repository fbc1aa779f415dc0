"""The Hub → the Hugging Face cache, by huggingface_hub: only the files that are needed."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from gpt2np.errors import CheckpointError, ModelNotFoundError
from gpt2np.hub import failures
from gpt2np.hub.cache import cache_folder
from gpt2np.hub.files import WEIGHTS, FileList, weights_in
from gpt2np.hub.names import HubId
from gpt2np.hub.weight_files import WEIGHTS_FILE
from gpt2np.hub.weights import fetch_weights


def list_files(model: HubId, timeout: float | None = None) -> frozenset[str]:
    """The names of all files of `model`: one request. Raises what huggingface_hub raises."""
    from huggingface_hub import HfApi, constants

    seconds = timeout or constants.HF_HUB_ETAG_TIMEOUT
    info = HfApi().model_info(model.repository, revision=model.revision, timeout=seconds)
    return frozenset(file.rfilename for file in info.siblings or ())


def fetch(model: HubId, files: FileList, listing: frozenset[str] | None = None) -> Path:
    """Fetch `files` of `model` into the cache; returns the folder they are in.

    Of large files a progress bar goes to stderr if that is a terminal. Files that are cached
    already are kept, and weights that were fetched in part are continued. Other processes may fetch
    the same.

    Raises:
        ModelNotFoundError: it is not there or can't be fetched; the message says what to do.
        CheckpointError: its weights are sharded, and their index is damaged.
    """
    with _warnings_silenced():
        if listing is None:
            try:
                listing = list_files(model)
            except Exception as error:  # its HTTP libraries' errors have no class in common
                raise failures.not_reached(model, files, error) from None
        if missing := files.missing(listing.__contains__):
            raise failures.incomplete(model, missing, listing)
        try:
            _check_writable(cache_folder())
            folder = _fetch_small_files(model, files, listing)
            for name in _weights(model, files, folder, listing):
                fetch_weights(model.repository, folder, name)
        except (ModelNotFoundError, CheckpointError):
            raise
        except Exception as error:  # as above
            raise failures.broken_off(model, error) from None
        return folder


def _fetch_small_files(model: HubId, files: FileList, listing: frozenset[str]) -> Path:
    """All but the tensors; it also notes in the cache which commit the revision is.

    Last come those that make it complete: whoever finds them finds the others, too.
    """
    from huggingface_hub import snapshot_download

    folder = ""
    with _no_progress_bars():
        for names in files.in_two_steps(listing):
            folder = snapshot_download(
                model.repository, revision=model.revision, allow_patterns=names
            )
    return Path(folder)


def _weights(model: HubId, files: FileList, folder: Path, listing: frozenset[str]) -> list[str]:
    """The names of the files of tensors."""
    if not files.with_weights:
        return []
    single = WEIGHTS.way(listing.__contains__) == (WEIGHTS_FILE,)
    shards = [WEIGHTS_FILE] if single else weights_in(folder)[1:]
    if missing := [name for name in shards if name not in listing]:
        raise failures.incomplete(model, missing, listing)
    return shards


def _check_writable(folder: Path) -> None:
    """Raise OSError with the folder's name now rather than warnings and an error later."""
    folder.mkdir(parents=True, exist_ok=True)
    hook = folder / f".gpt2np-{os.getpid()}"
    hook.touch()
    hook.unlink()


@contextlib.contextmanager
def _no_progress_bars() -> Iterator[None]:
    """None for small files: up to three for each, which some versions draw once more at exit."""
    from huggingface_hub import constants
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    # Where the variable is set, it decides.
    is_ours = constants.HF_HUB_DISABLE_PROGRESS_BARS is None and not are_progress_bars_disabled()
    if is_ours:
        disable_progress_bars()
    try:
        yield
    finally:
        if is_ours:
            enable_progress_bars()


@contextlib.contextmanager
def _warnings_silenced() -> Iterator[None]:
    """No word from huggingface_hub but progress, unless the user asks for more.

    It would tell of every attempt that fails; what came of them is said once, at the end.
    """
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    if "HF_HUB_VERBOSITY" not in os.environ:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="huggingface_hub")
            yield
    finally:
        logger.setLevel(level)
