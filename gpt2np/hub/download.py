"""Downloads of models into the Hugging Face cache. Weights resume after interruptions.

huggingface_hub resumes a download only in the process that began it. It trusts the server's ETag
and commit as parts of paths, and writes as many bytes as the server sends. So this module writes
the cache itself, in huggingface_hub's layout: `blobs/ETAG` has a file's content, `snapshots/COMMIT`
has links to blobs, and `refs/BRANCH` has a commit. A later process can continue a partial blob.
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
from typing import BinaryIO, cast

from gpt2np.data.files import atomic_write_text
from gpt2np.errors import CheckpointError, InvalidArgumentError, ModelNotFoundError
from gpt2np.hub.failures import (
    Interrupted,
    endpoint,
    incomplete,
    interrupted,
    megabytes,
    unreachable,
)
from gpt2np.hub.model_files import WEIGHTS, WEIGHTS_FILE, FileSet, list_weight_files
from gpt2np.hub.repository import HubId, cache_folder, repository_folder
from gpt2np.limits import how_to_raise, limits

_SHA256_DIGITS = 64  # a large file's ETag is its SHA-256; a small file's ETag is git's SHA-1
_HASH_CHUNK = 1 << 20
_MAX_NAME_LENGTH = 128  # characters of an ETag or a commit
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
                raise unreachable(model, files, error) from None
        if missing := files.missing(listing.__contains__):
            raise incomplete(model, missing, listing)
        try:
            _check_writable(cache_folder())
            folder = _download_small_files(model, files, listing)
            for name in _weight_files(model, files, folder, listing):
                _download_file(model.repository, folder, name)
        except (ModelNotFoundError, CheckpointError, InvalidArgumentError):
            raise
        except Exception as error:  # see the comment above
            raise interrupted(model, error) from None
        return folder


def _download_small_files(model: HubId, files: FileSet, listing: frozenset[str]) -> Path:
    """Download all files except weights, and record the revision's commit in the cache."""
    optional, required = files.download_steps(listing)
    revision = model.revision or "main"
    commit = _RemoteFile.request(model.repository, required[0], revision).commit
    folder = repository_folder(model.repository)
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True, exist_ok=True)
    if revision != commit:
        reference = folder / "refs" / revision
        reference.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_text(reference, commit)
    for name in (*optional, *required):
        _download_file(model.repository, snapshot, name)
    return snapshot


def _weight_files(model: HubId, files: FileSet, folder: Path, listing: frozenset[str]) -> list[str]:
    """Return the names of the weight file or the shards; [] if `files` has no weights."""
    if WEIGHTS not in files.alternatives:
        return []
    names = [WEIGHTS_FILE] if WEIGHTS_FILE in listing else list_weight_files(folder)[1:]
    if missing := [name for name in names if name not in listing]:
        raise incomplete(model, missing, listing)
    return names


def _check_writable(folder: Path) -> None:
    """Raise OSError for a read-only folder; huggingface_hub would print warnings and fail later."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f".gpt2np-{os.getpid()}"
    file.touch()
    file.unlink()


def _download_file(repository: str, snapshot: Path, name: str) -> None:
    """Download the file `name` of `repository` into the cache, and link it in `snapshot`."""
    if (snapshot / name).is_file():
        return
    file = _RemoteFile.request(repository, name, snapshot.name)
    file.download()
    with contextlib.suppress(FileExistsError):  # another process has been faster
        try:
            (snapshot / name).symlink_to(Path("../../blobs") / file.etag)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            file.blob.replace(snapshot / name)


class _CappedFile:
    """A file that refuses to grow beyond `most` bytes, however many the server sends."""

    def __init__(self, file: BinaryIO, most: int) -> None:
        self._file = file
        self._most = most
        self.tell, self.seek, self.truncate = file.tell, file.seek, file.truncate

    def write(self, data: bytes) -> int:
        """Write `data`; raises ValueError if the file would exceed its maximum size."""
        if self._file.tell() + len(data) > self._most:
            raise ValueError(f"the server sends more than the {self._most:,} bytes it announced")
        return self._file.write(data)


@dataclass(frozen=True)
class _RemoteFile:
    """A file on the Hub, as the server describes it; commit and ETag are safe in paths."""

    repository: str
    name: str
    url: str
    commit: str
    etag: str  # name of the content in the cache
    size: int  # in bytes

    @classmethod
    def request(cls, repository: str, name: str, revision: str) -> _RemoteFile:
        """Request a file's metadata; ModelNotFoundError if invalid, or if the file is too large."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        url = hf_hub_url(repository, name, revision=revision)
        metadata = get_hf_file_metadata(url)
        commit, etag, size = metadata.commit_hash or "", metadata.etag or "", metadata.size
        names = ("ETag", etag), ("commit", commit)
        problems = [f"the {kind} {text!r:.80}" for kind, text in names if not _is_safe(text)]
        if problems or size is None:
            problem = (*problems, "no size")[0]
            raise ModelNotFoundError(
                f"{endpoint()} announces {name} of {repository} with {problem}, which gpt2np does "
                "not use in the cache; choose another HF_ENDPOINT"
            )
        is_weights = name.endswith(".safetensors")
        limit = "max_hub_weights_bytes" if is_weights else "max_hub_file_bytes"
        if size > (most := getattr(limits(), limit)):
            raise ModelNotFoundError(
                f"{name} of {repository} has {megabytes(size)}, more than {megabytes(most)}; "
                f"{how_to_raise(limit)}"
            )
        return cls(repository, name, url, commit, etag, size)

    @property
    def blob(self) -> Path:
        """The path of the content in the cache."""
        return repository_folder(self.repository) / "blobs" / self.etag

    def __str__(self) -> str:
        return f"{self.name} of {self.repository}"

    def download(self) -> None:
        """Download the content unless it is cached. A lock keeps other processes waiting."""
        if self.blob.exists():
            return
        with _lock(self):
            if not self.blob.exists():  # another process may have just downloaded it
                self._complete(self.blob.with_name(f"{self.etag}.incomplete"))

    def _complete(self, partial: Path) -> None:
        """Download the rest of `partial`; if a resumed download is damaged, start at byte 0."""
        resumed = partial.exists()
        partial.parent.mkdir(parents=True, exist_ok=True)
        self._append_to(partial)
        if self._is_valid(partial):
            partial.replace(self.blob)
            return
        partial.unlink()
        if not resumed:
            raise ModelNotFoundError(
                f"{self} arrived damaged from {endpoint()}: its size or SHA-256 differs from the "
                "announced one; try again, and if that fails, use another HF_ENDPOINT or network"
            )
        self._complete(partial)

    def _append_to(self, partial: Path) -> None:
        with partial.open("ab") as file:
            if file.tell() > self.size:
                file.seek(0)
                file.truncate()
            usage, needed = shutil.disk_usage(partial.parent), self.size - file.tell()
            is_small = needed < _HASH_CHUNK  # a full disk is an error while writing
            if usage.total and usage.free < needed and not is_small:
                raise ModelNotFoundError(
                    f"not enough disk space for {self}: it needs {megabytes(needed)}, and the "
                    f"cache {cache_folder()} has {megabytes(usage.free)} free; free some space, or "
                    "set HF_HOME to a folder on another disk"
                )
            try:
                self._get(file)
            except Exception as error:
                if file.tell() < self.size:
                    raise Interrupted(self.name, file.tell(), self.size) from error

    def _get(self, file: BinaryIO) -> None:
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]
        from tqdm import tqdm

        http_get(
            self.url,
            cast("BinaryIO", _CappedFile(file, self.size)),
            resume_size=file.tell(),
            headers=build_hf_headers() | {"Accept-Encoding": "identity"},
            expected_size=self.size,
            displayed_filename=self.name,
            _tqdm_bar=None if self.name.endswith(".safetensors") else tqdm(disable=True),
        )

    def _is_valid(self, file: Path) -> bool:
        """Tell whether a file has the size and, if known, the SHA-256 that the Hub announces."""
        if file.stat().st_size != self.size or len(self.etag) != _SHA256_DIGITS:
            return file.stat().st_size == self.size
        digest = hashlib.sha256()
        with file.open("rb") as content:
            while chunk := content.read(_HASH_CHUNK):
                digest.update(chunk)
        return digest.hexdigest() == self.etag


def _is_safe(text: str) -> bool:
    """Tell whether an ETag or a commit can be the name of a file."""
    return text.isascii() and text.isalnum() and len(text) <= _MAX_NAME_LENGTH


@contextlib.contextmanager
def _lock(file: _RemoteFile) -> Iterator[None]:
    """Hold huggingface_hub's lock of a blob: only the process with the lock downloads the blob."""
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    locks = cache_folder() / ".locks" / repository_folder(file.repository).name
    locks.mkdir(parents=True, exist_ok=True)
    message = f"another process is downloading {file}; waiting for it"
    notice = threading.Timer(_LOCK_NOTICE_S, logging.getLogger("gpt2np").warning, [message])
    notice.daemon = True
    notice.start()
    with WeakFileLock(locks / f"{file.etag}.lock"):
        notice.cancel()
        yield


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
