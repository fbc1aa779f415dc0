"""One large file from the Hub into the cache, continued where the last attempt ended.

huggingface_hub continues a download that breaks off, but its newer versions begin anew in the next
process. So here the file grows under the name that its older versions gave it, beside the place
where it belongs, and huggingface_hub, which then finds it there, does the rest.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gpt2np.hub import failures
from gpt2np.hub.cache import cache_folder, repository_folder

_SHA256_DIGITS = 64  # large files have their SHA-256 as ETag; others, which git keeps, its SHA-1
_CHUNK = 1 << 20
_PATIENCE = 1.0  # seconds of waiting for another process before the user is told


def fetch_weights(repository: str, folder: Path, name: str) -> None:
    """Fetch the file `name` into the snapshot `folder` of `repository` in the cache.

    Raises:
        ModelNotFoundError: the disk has no space for it, or it arrived damaged.
        Interrupted: the connection broke off.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    if (folder / name).is_file():
        return
    commit = folder.name
    url = hf_hub_url(repository, name, revision=commit)
    metadata = get_hf_file_metadata(url)
    blob = None
    if metadata.size is not None and metadata.etag and metadata.etag.isalnum():
        blob = repository_folder(repository) / "blobs" / metadata.etag
        _Content(url, f"{name} of {repository}", name, blob, metadata.size).fetch()
    hf_hub_download(repository, name, revision=commit)
    if blob and not (folder / name).is_symlink():  # where links can't be made, it is a copy
        blob.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Content:
    """A file's content, on the Hub and, when it is fetched, in the cache, named by its ETag."""

    url: str
    label: str
    name: str
    blob: Path
    size: int

    def fetch(self) -> None:
        """Fetch it if it isn't there; no two processes at the same time."""
        if self.blob.exists():
            return
        with _locked(self.blob, self.label):
            if not self.blob.exists():  # another process may have fetched it in the meantime
                self._complete(self.blob.with_name(f"{self.blob.name}.incomplete"))

    def _complete(self, partial: Path) -> None:
        """Fetch what is still missing; if what was there was no part of it, all of it."""
        resumed = partial.exists()
        partial.parent.mkdir(parents=True, exist_ok=True)
        self._append_to(partial)
        if self._is_in(partial):
            partial.replace(self.blob)
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
            self._check_space(partial.parent, self.size - file.tell())
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

    def _is_in(self, file: Path) -> bool:
        """Whether it is what the Hub says it is, as far as it says so."""
        if file.stat().st_size != self.size or len(self.blob.name) != _SHA256_DIGITS:
            return file.stat().st_size == self.size
        digest = hashlib.sha256()
        with file.open("rb") as content:
            while chunk := content.read(_CHUNK):
                digest.update(chunk)
        return digest.hexdigest() == self.blob.name

    def _check_space(self, folder: Path, needed: int) -> None:
        """Better told before the disk is full than after."""
        usage = shutil.disk_usage(folder)
        if usage.total and usage.free < needed:
            raise failures.no_space(self.label, needed, usage.free)


@contextlib.contextmanager
def _locked(blob: Path, label: str) -> Iterator[None]:
    """Keep other processes from fetching the same, also those that know only huggingface_hub."""
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    lock = cache_folder() / ".locks" / blob.parent.parent.name / f"{blob.name}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    told = f"another process is fetching {label}; waiting for it"
    waiting = threading.Timer(_PATIENCE, logging.getLogger("gpt2np").warning, [told])
    waiting.daemon = True
    waiting.start()
    with WeakFileLock(lock):
        waiting.cancel()
        yield
