"""Downloads of models into the Hugging Face cache. Weights resume after interruptions.

huggingface_hub resumes a download only in the process that began it. This module downloads each
weight file into a partial file in the cache, which a later process can continue. Then
huggingface_hub finds the complete file in the cache, and adds it to the snapshot.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gpt2np.errors import CheckpointError, ModelNotFoundError
from gpt2np.hub import failures
from gpt2np.hub.model_files import WEIGHTS, WEIGHTS_FILE, FileSet, list_weight_files
from gpt2np.hub.repository import HubId, cache_folder, repository_folder

_SHA256_DIGITS = 64  # a large file's ETag is its SHA-256; a small file's ETag is git's SHA-1
_HASH_CHUNK = 1 << 20
_LOCK_NOTICE_S = 1.0  # how long to wait for another process before telling the user


def list_files(model: HubId, timeout: float | None = None) -> frozenset[str]:
    """Return the names of all files of `model` on the Hub.

    Raises the exceptions of huggingface_hub.
    """
    from huggingface_hub import HfApi, constants

    seconds = timeout or constants.HF_HUB_ETAG_TIMEOUT
    info = HfApi().model_info(model.repository, revision=model.revision, timeout=seconds)
    return frozenset(file.rfilename for file in info.siblings or ())


def download(model: HubId, files: FileSet, listing: frozenset[str] | None = None) -> Path:
    """Download `files` of `model` into the cache, and return the snapshot's folder.

    Files in the cache are not downloaded again, and partial weight files are resumed. Other
    processes may download the same files at the same time. On a terminal, large files show a
    progress bar on stderr. `listing` is the result of `list_files`, if already known.

    Raises:
        ModelNotFoundError: the model does not exist, or the download fails.
        CheckpointError: the index of sharded weights is damaged.
    """
    with _warnings_silenced():
        if listing is None:
            try:
                listing = list_files(model)
            except Exception as error:  # the HTTP libraries' errors have no common base class
                raise failures.unreachable(model, files, error) from None
        if missing := files.missing(listing.__contains__):
            raise failures.incomplete(model, missing, listing)
        try:
            _check_writable(cache_folder())
            folder = _download_small_files(model, files, listing)
            for name in _weight_files(model, files, folder, listing):
                _download_weights(model.repository, folder, name)
        except (ModelNotFoundError, CheckpointError):
            raise
        except Exception as error:  # see the comment above
            raise failures.interrupted(model, error) from None
        return folder


def _download_small_files(model: HubId, files: FileSet, listing: frozenset[str]) -> Path:
    """Download all files except weights, and record the revision's commit in the cache."""
    from huggingface_hub import snapshot_download

    folder = ""
    with _no_progress_bars():
        for names in files.download_steps(listing):
            folder = snapshot_download(
                model.repository, revision=model.revision, allow_patterns=names
            )
    return Path(folder)


def _weight_files(model: HubId, files: FileSet, folder: Path, listing: frozenset[str]) -> list[str]:
    """Return the names of the weight file or the shards, without the index."""
    if not files.has_weights:
        return []
    is_single = WEIGHTS.select(listing.__contains__) == (WEIGHTS_FILE,)
    names = [WEIGHTS_FILE] if is_single else list_weight_files(folder)[1:]
    if missing := [name for name in names if name not in listing]:
        raise failures.incomplete(model, missing, listing)
    return names


def _check_writable(folder: Path) -> None:
    """Raise OSError for a read-only folder; huggingface_hub would print warnings and fail later."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f".gpt2np-{os.getpid()}"
    file.touch()
    file.unlink()


def _download_weights(repository: str, folder: Path, name: str) -> None:
    """Download the weight file `name` of `repository` into the snapshot `folder`."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    if (folder / name).is_file():
        return
    commit = folder.name
    url = hf_hub_url(repository, name, revision=commit)
    metadata = get_hf_file_metadata(url)
    blob = None
    if metadata.size is not None and metadata.etag and metadata.etag.isalnum():
        blob = repository_folder(repository) / "blobs" / metadata.etag
        _Blob(url, f"{name} of {repository}", name, blob, metadata.size).download()
    hf_hub_download(repository, name, revision=commit)
    if blob and not (folder / name).is_symlink():  # without links, the snapshot has a copy
        blob.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Blob:
    """The content of one weight file, which the cache stores under its ETag."""

    url: str  # address on the Hub
    label: str  # file and repository, for messages
    name: str
    path: Path  # in the cache
    size: int  # in bytes

    def download(self) -> None:
        """Download the content unless it is cached. A lock keeps other processes waiting."""
        if self.path.exists():
            return
        with _lock(self.path, self.label):
            if not self.path.exists():  # another process may have just downloaded it
                self._complete(self.path.with_name(f"{self.path.name}.incomplete"))

    def _complete(self, partial: Path) -> None:
        """Download the rest of the file; if a resumed file turns out damaged, start at byte 0."""
        resumed = partial.exists()
        partial.parent.mkdir(parents=True, exist_ok=True)
        self._append_to(partial)
        if self._is_valid(partial):
            partial.replace(self.path)
            return
        partial.unlink()
        if not resumed:
            raise failures.damaged(self.label)
        self._complete(partial)

    def _append_to(self, partial: Path) -> None:
        with partial.open("ab") as file:
            if file.tell() > self.size:
                file.seek(0)
                file.truncate()
            usage, needed = shutil.disk_usage(partial.parent), self.size - file.tell()
            if usage.total and usage.free < needed:
                raise failures.no_disk_space(self.label, needed, usage.free)
            try:
                self._get(file)
            except Exception as error:
                if file.tell() < self.size:
                    raise failures.Interrupted(self.name, file.tell(), self.size) from error

    def _get(self, file: BinaryIO) -> None:
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        http_get(
            self.url,
            file,
            resume_size=file.tell(),
            headers=build_hf_headers() | {"Accept-Encoding": "identity"},
            expected_size=self.size,
            displayed_filename=self.name,
        )

    def _is_valid(self, file: Path) -> bool:
        """Tell whether a file has the size and, if known, the SHA-256 that the Hub announces."""
        if file.stat().st_size != self.size or len(self.path.name) != _SHA256_DIGITS:
            return file.stat().st_size == self.size
        digest = hashlib.sha256()
        with file.open("rb") as content:
            while chunk := content.read(_HASH_CHUNK):
                digest.update(chunk)
        return digest.hexdigest() == self.path.name


@contextlib.contextmanager
def _lock(blob: Path, label: str) -> Iterator[None]:
    """Hold huggingface_hub's lock of a blob: only the process with the lock downloads the blob."""
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    lock = cache_folder() / ".locks" / blob.parent.parent.name / f"{blob.name}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    message = f"another process is downloading {label}; waiting for it"
    notice = threading.Timer(_LOCK_NOTICE_S, logging.getLogger("gpt2np").warning, [message])
    notice.daemon = True
    notice.start()
    with WeakFileLock(lock):
        notice.cancel()
        yield


@contextlib.contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Hide huggingface_hub's progress bars: each small file would show up to three."""
    from huggingface_hub import constants
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    # The environment variable takes precedence.
    may_hide = constants.HF_HUB_DISABLE_PROGRESS_BARS is None and not are_progress_bars_disabled()
    if may_hide:
        disable_progress_bars()
    try:
        yield
    finally:
        if may_hide:
            enable_progress_bars()


@contextlib.contextmanager
def _warnings_silenced() -> Iterator[None]:
    """Silence huggingface_hub's reports of failed attempts, unless HF_HUB_VERBOSITY is set."""
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
