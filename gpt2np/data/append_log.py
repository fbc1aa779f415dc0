"""Resumable output: append-only files, and a journal of the lengths that are valid.

A line of the journal is a resume point: how much input has been read, and how long the files were
at that moment. The line is written after the files have reached the disk, so it never promises
more than there is. A resumed run truncates the files to the last resume point whose input is
unchanged, and continues from there.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import IO

from gpt2np.data.files import atomic_write_text
from gpt2np.errors import GPT2NPError

_JOURNAL = "journal"
_LOCK = "lock"


@dataclass(frozen=True)
class ResumePoint:
    """How much of the input has been read, and how long the output was then."""

    files: int = 0  # input files read to the end
    batches: int = 0  # batches read from the next input file
    done: int = 0  # total progress, in the caller's unit (bytes or lines)
    lengths: tuple[int, ...] = ()  # of each output file, in bytes
    # at the start of the current input file, to undo it if it turns out damaged
    rollback_lengths: tuple[int, ...] = ()
    digest: str = ""  # of the task and the input files read so far: see `input_digests`

    @property
    def files_started(self) -> int:
        """Number of input files read, at least in part."""
        return self.files + (self.batches > 0)


def input_digests(task: str, files: Iterable[Path]) -> list[str]:
    """Digests of `task` and the first 0, 1, 2, … of `files`: their paths, sizes and times."""
    stamps = []
    for file in files:
        status = file.stat()
        stamps.append(json.dumps([os.fspath(file.absolute()), status.st_size, status.st_mtime_ns]))
    return [*accumulate(stamps, _digest, initial=_digest(task))]


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def partial_folder(out: Path) -> Path:
    """Folder that holds the unfinished output `out`."""
    return out.with_name(f"{out.name}.partial")


@dataclass
class AppendLog:
    """Append-only files and their journal, in a folder that one process at a time may use.

    Use the log in a `with` statement. The folder stays after an interruption if its journal has a
    resume point. Call `remove` when the work is done.
    """

    folder: Path
    names: Sequence[str]  # of the files
    restarted: bool = field(default=False, init=False)  # resume points exist, but none is valid
    _files: list[IO[bytes]] = field(default_factory=list, init=False)
    _lock: IO[bytes] | None = field(default=None, init=False)

    @property
    def paths(self) -> list[Path]:
        """Paths of the files."""
        return [self.folder / name for name in self.names]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Length of each file, in bytes."""
        return tuple(file.tell() for file in self._files)

    def resume(self, digests: Sequence[str]) -> ResumePoint:
        """Truncate the files to the last resume point that matches `digests`, or to nothing.

        Raises GPT2NPError if another process uses the folder, or the path is not a folder.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise GPT2NPError(
                f"{self.folder}, where unfinished work is kept, is not a folder; move it elsewhere"
            )
        self._lock = _acquire_lock(self.folder / _LOCK)
        if self._lock is None:
            raise GPT2NPError(
                f"another process is writing to {self.folder}; wait for it to end, or choose "
                "another output file"
            )
        self._files = [path.open("ab") for path in self.paths]
        start = ResumePoint(0, 0, 0, (0,) * len(self.names), (0,) * len(self.names), digests[0])
        points = self._read_journal()
        sizes = [path.stat().st_size for path in self.paths]
        valid = [
            point
            for point in points
            if point.digest in digests[point.files_started : point.files_started + 1]
            and not _any_longer(point.lengths, sizes)
        ]
        self.restarted = bool(points) and not valid
        last = valid[-1] if valid else start
        self.truncate(last.lengths)
        return last

    def append(self, *contents: bytes) -> None:
        """Append one content to each file."""
        for file, content in zip(self._files, contents, strict=True):
            file.write(content)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Truncate the files, and drop the resume points at which a file was longer."""
        kept = [point for point in self._read_journal() if not _any_longer(point.lengths, lengths)]
        atomic_write_text(self._journal_path, "".join(map(_journal_line, kept)))
        for file, length in zip(self._files, lengths, strict=True):
            file.truncate(length)
            file.seek(length)

    def save(self, point: ResumePoint) -> None:
        """Flush the files to the disk, then append `point` to the journal."""
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())
        with self._journal_path.open("a", encoding="utf-8") as journal:
            journal.write(_journal_line(point))

    def close(self) -> None:
        """Flush and close the files."""
        for file in self._files:
            file.close()

    def remove(self) -> None:
        """Remove the files and the folder."""
        self.close()
        if self._lock is not None:
            for path in self.folder.iterdir():
                if path.name != _LOCK:
                    path.unlink()
            _remove_lock(self.folder / _LOCK, self._lock)
            self._lock = None

    def __enter__(self) -> AppendLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self._lock is not None and not self._read_journal():
            self.remove()
        elif self._lock is not None:
            self._lock.close()

    @property
    def _journal_path(self) -> Path:
        return self.folder / _JOURNAL

    def _read_journal(self) -> list[ResumePoint]:
        if not self._journal_path.exists():
            return []
        text = self._journal_path.read_text(encoding="utf-8", errors="replace")
        lines = text.split("\n")[:-1]  # a last line without its newline is incomplete
        return [point for point in map(_parse_journal_line, lines) if point]


def _any_longer(lengths: Sequence[int], limits: Sequence[int]) -> bool:
    return any(length > limit for length, limit in zip(lengths, limits, strict=True))


def _journal_line(point: ResumePoint) -> str:
    return json.dumps(asdict(point)) + "\n"


def _parse_journal_line(line: str) -> ResumePoint | None:
    try:
        content = json.loads(line)
        lengths = tuple(content.pop("lengths"))
        rollback_lengths = tuple(content.pop("rollback_lengths"))
        return ResumePoint(**content, lengths=lengths, rollback_lengths=rollback_lengths)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None  # after a power failure the disk may hold anything


def _acquire_lock(path: Path) -> IO[bytes] | None:
    """Create and lock the file `path`, and its folder; closing the file releases the lock.

    The lock also ends with the process, even if the process is killed. Returns None if another
    process holds the lock. On a file system without locks, every process gets the file. Raises
    OSError if the file can't be created.
    """
    while True:
        path.parent.mkdir(exist_ok=True)
        try:
            file = path.open("ab")
        except FileNotFoundError:  # another process has removed the folder since mkdir
            continue
        if not _try_lock(file):
            file.close()
            return None
        if _is_at(path, file):
            return file
        file.close()  # another process removed the file before the lock was acquired


def _remove_lock(path: Path, file: IO[bytes]) -> None:
    """Remove and release a lock file, and remove its folder if that is empty."""
    if sys.platform == "win32":
        file.close()  # Windows can't remove an open file
    try:
        path.unlink()
        path.parent.rmdir()
    except OSError:
        pass  # another process has started to use the folder
    finally:
        file.close()


def _try_lock(file: IO[bytes]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            # Worker processes, which may outlive a killed parent, don't inherit a lockf lock;
            # they would inherit one of flock.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _is_at(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
