"""Work that survives being killed: files that only grow, and a journal of how far they are valid.

A checkpoint is a line of the journal: what of the input has been read, and how long the files were
then. It is written after the files' content has reached the disk, so that it never promises more
than there is. After an interruption the last checkpoint whose input is still the same counts: the
files are cut to its lengths, and the work goes on from there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import IO

from gpt2np.data.file_lock import lock_file, remove_locked
from gpt2np.data.text_file import write_text
from gpt2np.errors import GPT2NPError

_JOURNAL = "journal"
_LOCK = "lock"


@dataclass(frozen=True)
class Checkpoint:
    """A moment of the work.

    Attributes:
        files: how many input files have been read to their ends.
        batches: how many batches of the next one.
        done: how many bytes these are in all.
        lengths: the bytes in each of the files that grow.
        file_lengths: the same when that input file was begun, to take it back if it is damaged.
        digest: stands for all that has been read, and how: of `digests`, that of `begun`.
    """

    files: int = 0
    batches: int = 0
    done: int = 0
    lengths: tuple[int, ...] = ()
    file_lengths: tuple[int, ...] = ()
    digest: str = ""

    @property
    def begun(self) -> int:
        """How many input files have been read, at least in part."""
        return self.files + (self.batches > 0)


def digests(task: str, files: Iterable[Path]) -> list[str]:
    """For each number of files, from none to all, a text that changes with `task` and with the
    path, size or time of one of so many first files."""
    return [*accumulate(map(_stamp, files), _digest, initial=_digest(task))]


def _stamp(file: Path) -> str:
    status = file.stat()
    return json.dumps([os.fspath(file.absolute()), status.st_size, status.st_mtime_ns])


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


@dataclass
class GrowingFiles:
    """Files in a folder of their own, that grow together, and their journal.

    Use it in a `with` statement. The folder stays if the work is interrupted, unless there is no
    checkpoint in it; when the work is done, `remove` it. Only one process at a time may work in it.

    Attributes:
        folder: the folder.
        names: the files' names.
        begun_anew: whether `resume` found checkpoints, of which none counts any more.
    """

    folder: Path
    names: Sequence[str]
    begun_anew: bool = field(default=False, init=False)
    _open: list[IO[bytes]] = field(default_factory=list, init=False)
    _lock: IO[bytes] | None = field(default=None, init=False)

    @property
    def paths(self) -> list[Path]:
        """The files' paths."""
        return [self.folder / name for name in self.names]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The bytes in each file."""
        return tuple(file.tell() for file in self._open)

    def resume(self, digests: Sequence[str]) -> Checkpoint:
        """Open the files as they were at the last checkpoint that fits `digests`, or empty.

        Raises:
            GPT2NPError: another process is at work in the folder, or it is none.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise GPT2NPError(
                f"{self.folder}, where unfinished work is kept, is not a folder; move it elsewhere"
            )
        self._lock = lock_file(self.folder / _LOCK)
        if self._lock is None:
            raise GPT2NPError(
                f"another process is writing what {self.folder} holds; wait until it has ended, or "
                "choose another file"
            )
        self._open = [path.open("ab") for path in self.paths]
        nothing = Checkpoint(0, 0, 0, (0,) * len(self.names), (0,) * len(self.names), digests[0])
        points = self._journal()
        valid = [point for point in points if self._is_valid(point, digests)]
        self.begun_anew = bool(points) and not valid
        last = valid[-1] if valid else nothing
        self.cut(last.lengths)
        return last

    def append(self, *contents: bytes) -> None:
        """Append to each of the files."""
        for file, content in zip(self._open, contents, strict=True):
            file.write(content)

    def cut(self, lengths: Sequence[int]) -> None:
        """Cut the files to these lengths, and forget the checkpoints at which they were longer."""
        kept = [point for point in self._journal() if not _any_longer(point.lengths, lengths)]
        write_text(self._journal_path, "".join(map(_line, kept)))
        for file, length in zip(self._open, lengths, strict=True):
            file.truncate(length)
            file.seek(length)

    def save(self, checkpoint: Checkpoint) -> None:
        """Make sure that the files are on the disk, then write the checkpoint to the journal."""
        for file in self._open:
            file.flush()
            os.fsync(file.fileno())
        with self._journal_path.open("a", encoding="utf-8") as journal:
            journal.write(_line(checkpoint))

    def close(self) -> None:
        """Close the files; what is to be written reaches them first."""
        for file in self._open:
            file.close()

    def remove(self) -> None:
        """Remove the folder and the files in it."""
        self.close()
        if self._lock is not None:
            for path in self.folder.iterdir():
                if path.name != _LOCK:
                    path.unlink()
            remove_locked(self.folder / _LOCK, self._lock)
            self._lock = None

    def __enter__(self) -> GrowingFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self._lock is not None and not self._journal():
            self.remove()
        elif self._lock is not None:
            self._lock.close()

    @property
    def _journal_path(self) -> Path:
        return self.folder / _JOURNAL

    def _journal(self) -> list[Checkpoint]:
        if not self._journal_path.exists():
            return []
        text = self._journal_path.read_text(encoding="utf-8", errors="replace")
        lines = text.split("\n")[:-1]  # the last, which has no end, was not written wholly
        return [point for point in map(_parsed, lines) if point]

    def _is_valid(self, point: Checkpoint, digests: Sequence[str]) -> bool:
        sizes = [path.stat().st_size for path in self.paths]
        known = point.begun < len(digests) and point.digest == digests[point.begun]
        return known and not _any_longer(point.lengths, sizes)


def _any_longer(lengths: Sequence[int], limits: Sequence[int]) -> bool:
    return any(length > limit for length, limit in zip(lengths, limits, strict=True))


def _line(point: Checkpoint) -> str:
    return json.dumps(asdict(point)) + "\n"


def _parsed(line: str) -> Checkpoint | None:
    try:
        content = json.loads(line)
        lengths, file_lengths = tuple(content.pop("lengths")), tuple(content.pop("file_lengths"))
        return Checkpoint(**content, lengths=lengths, file_lengths=file_lengths)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None  # a disk that lost power may hold anything
