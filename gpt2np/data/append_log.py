"""Resumable output: append-only files, and a journal of their valid lengths.

Each line of the journal is a resume point: how much input had been read, and how long the files
were, at one moment. A line is written after the files have reached the disk, so the files are never
shorter than the line says. To resume, the files are truncated to the last resume point. If the
settings or the input read so far have changed, nothing is truncated, and an error names the change.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

from gpt2np.data.files import atomic_write_text, errors_name
from gpt2np.errors import GPT2NPError, InvalidArgumentError, short_repr

_JOURNAL = "journal"
_TASK = "task.json"
_LOCK = "lock"


@dataclass(frozen=True)
class ResumePoint:
    """How much of the input was read, and how long the output files were, at one moment."""

    files: int = 0  # number of input files (or lines of the only file) read to the end
    batches: int = 0  # number of batches read from the next input file
    done: int = 0  # total progress, in the caller's unit (bytes or lines)
    lengths: tuple[int, ...] = ()  # length of each output file, in bytes
    # lengths at the start of the current input file, to undo that file if it turns out damaged
    rollback_lengths: tuple[int, ...] = ()
    digest: str = ""  # digest of the input read so far

    @property
    def files_started(self) -> int:
        """Number of input files that were read, completely or in part."""
        return self.files + (self.batches > 0)


@dataclass(frozen=True)
class Task:
    """Settings and input of a job; resuming requires the same settings and the same input so far.

    Attributes:
        settings: JSON values by name; an error shows the values.
        fingerprints: digests by name, such as "the model"; an error shows only the name.
        digests: a function that returns, for each resume point, the current digest of the input
            read before that point.
        input_between: a function that names the input between two resume points, for errors.
        harmless: settings that may change to the given values; the results stay valid.
    """

    settings: Mapping[str, Any]
    fingerprints: Mapping[str, str]
    digests: Callable[[Sequence[ResumePoint]], Sequence[str]]
    input_between: Callable[[ResumePoint, ResumePoint], str]
    harmless: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> str:
        """Return the settings and fingerprints as a JSON object."""
        content = {"settings": self.settings, "fingerprints": self.fingerprints}
        return json.dumps(content, default=repr)


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of the unfinished job in `folder`, or {} if no job is unfinished."""
    settings: dict[str, Any] = _read_task(folder)["settings"]
    return settings


def _read_task(folder: Path) -> dict[str, dict[str, Any]]:
    try:
        content = json.loads((folder / _TASK).read_text(encoding="utf-8"))
        return {name: dict(content[name]) for name in ("settings", "fingerprints")}
    except (OSError, ValueError, TypeError, KeyError):
        return {"settings": {}, "fingerprints": {}}


def input_digests(files: Iterable[Path]) -> list[str]:
    """Return a list whose item n is the digest of the first n of `files`.

    A digest covers the paths, sizes and modification times of the files.
    """
    stamps = []
    for file in files:
        status = file.stat()
        stamps.append(json.dumps([os.fspath(file.absolute()), status.st_size, status.st_mtime_ns]))
    return [*accumulate(stamps, _digest, initial="")]


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def partial_folder(out: Path) -> Path:
    """Return the path of the folder that keeps unfinished work on the output file `out`."""
    return out.with_name(f"{out.name}.partial")


@dataclass
class AppendLog:
    """Append-only files and their journal, in a folder that one process at a time can lock.

    Use the log in a `with` statement, and call `remove` when the output is complete. After an
    interruption, the folder is kept if the journal has a resume point.
    """

    folder: Path
    names: Sequence[str]  # names of the files in the folder
    # what has changed, if `resume` has discarded the results of another task
    changes: list[str] = field(default_factory=list, init=False)
    _files: list[IO[bytes]] = field(default_factory=list, init=False)
    _lock: IO[bytes] | None = field(default=None, init=False)

    @property
    def paths(self) -> list[Path]:
        """Paths of the append-only files."""
        return [self.folder / name for name in self.names]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Length of each append-only file, in bytes."""
        return tuple(file.tell() for file in self._files)

    def resume(self, task: Task, *, force: bool = False) -> ResumePoint:
        """Lock the folder, truncate the files to the last resume point, and return the point.

        If the folder has results of another task, `force` discards the results that are not valid
        for `task`.

        Raises:
            InvalidArgumentError: the folder has results of another task, and `force` is false.
            GPT2NPError: another process uses the folder, or the path is not a folder.
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
        sizes = [path.stat().st_size for path in self.paths]
        points = [p for p in self._read_journal() if not _any_longer(p.lengths, sizes)]
        changes = [*_changes(_read_task(self.folder), task)] if points else []
        last = ResumePoint(0, 0, 0, (0,) * len(self.names), (0,) * len(self.names))
        for point, digest in zip(points, task.digests(points), strict=True):
            if changes:
                break
            if point.digest == digest:
                last = point
            elif point.files > last.files:  # a file that was read only in part may be repaired
                changes.append(f"{task.input_between(last, point)} has changed")
        if changes and not force:
            raise InvalidArgumentError(
                f"{self.folder} has the results of an unfinished job, but {'; '.join(changes)}; "
                "undo the change to go on, or give --force to start over"
            )
        if self._read_journal() and not points:
            changes.append("its files have been truncated")
        self.changes = changes
        self.truncate(last.lengths)
        atomic_write_text(self.folder / _TASK, task.as_json())
        return last

    def append(self, *contents: bytes) -> None:
        """Append one item of `contents` to each file."""
        for path, file, content in zip(self.paths, self._files, contents, strict=True):
            with errors_name(path):
                file.write(content)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Truncate the files to `lengths`, and drop resume points with greater lengths."""
        kept = [point for point in self._read_journal() if not _any_longer(point.lengths, lengths)]
        atomic_write_text(self._journal_path, "".join(map(_journal_line, kept)))
        for file, length in zip(self._files, lengths, strict=True):
            file.truncate(length)
            file.seek(length)

    def save(self, point: ResumePoint) -> None:
        """Flush the files to the disk, then append `point` to the journal."""
        for path, file in zip(self.paths, self._files, strict=True):
            with errors_name(path):
                file.flush()
                os.fsync(file.fileno())
        with (
            errors_name(self._journal_path),
            self._journal_path.open("a", encoding="utf-8") as journal,
        ):
            journal.write(_journal_line(point))

    def close(self) -> None:
        """Flush and close the append-only files."""
        for file in self._files:
            file.close()

    def remove(self) -> None:
        """Close and remove the files, then remove the folder."""
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
        lines = text.split("\n")[:-1]  # drop an incomplete last line, which has no newline
        return [point for point in map(_parse_journal_line, lines) if point]


def _changes(before: Mapping[str, Mapping[str, Any]], task: Task) -> Iterator[str]:
    """Describe each difference between the stored task `before` and `task`."""
    after = json.loads(task.as_json())
    for name in {**before["fingerprints"], **after["fingerprints"]}:
        if before["fingerprints"].get(name) != after["fingerprints"].get(name):
            yield f"{name} has changed"
    for name in {**before["settings"], **after["settings"]}:
        old, new = (settings.get(name) for settings in (before["settings"], after["settings"]))
        if old != new and (name not in task.harmless or task.harmless[name] != new):
            yield f"{name} was {_show(old)}, is {_show(new)}"


def _show(value: object) -> str:
    return "not given" if value is None else short_repr(value)


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
    """Create, open and lock the file `path`; return None if another process holds the lock."""
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
    """Remove a lock file, release the lock, and remove the folder if no file is left in it."""
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

            # lockf, not flock: worker processes may outlive a killed parent. They would inherit a
            # flock lock, but don't inherit a lockf lock.
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
