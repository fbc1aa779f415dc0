"""Resumable output: append-only files, and a journal of their valid lengths.

Each line of the journal is a resume point: how much input had been read, and how long the files
were, at one moment. A line is written after the files have reached the disk, so the files are never
shorter than the line says. To resume, the files are truncated to the last resume point whose
checksums match. If the settings or the input read so far have changed, nothing is truncated, and an
error names the change.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import IO, Any
from zlib import crc32

from gpt2np.data.files import errors_name, followed
from gpt2np.errors import GPT2NPError, InvalidArgumentError, short_repr

_JOURNAL = "journal"
_TASK = "task.json"
_LOCK = "lock"
_SCRATCH = "scratch"  # a file that replaces another file once it is complete

_SAVE_INTERVAL_S = 1.0
_READ_BYTES = 1 << 20


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
    checksums: tuple[int, ...] = ()  # CRC-32 of each output file

    @property
    def files_started(self) -> int:
        """Number of input files that were read, completely or in part."""
        return self.files + (self.batches > 0)


@dataclass(frozen=True)
class Task:
    """Settings and input of a resumable job. To resume, settings and input so far must be equal.

    Attributes:
        settings: JSON values by name; an error shows the values.
        fingerprints: digests by name, such as "the model"; an error shows only the name.
        digests: a function that returns {n: digest of the first n input files (or lines)} for given
            numbers n; numbers beyond the end are left out.
        describe_input: a function (start, stop) that names the input files (or lines) from index
            `start` to `stop` - 1 for error messages.
        harmless: settings, with the values to which they may change before a job is resumed.
    """

    settings: Mapping[str, Any]
    fingerprints: Mapping[str, str]
    digests: Callable[[Iterable[int]], Mapping[int, str]]
    describe_input: Callable[[int, int], str]
    harmless: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> str:
        """Return the settings and fingerprints as a JSON object."""
        content = {"settings": self.settings, "fingerprints": self.fingerprints}
        return json.dumps(content, default=repr)


@dataclass(frozen=True)
class JobCallbacks:
    """Functions that a resumable job calls.

    Attributes:
        on_resume: receives the progress of earlier runs, in bytes or lines.
        on_restart: receives descriptions of the changes that make earlier results invalid.
        on_progress: receives the progress of all runs, and the number of tokens of this run.
        on_skip: receives the error or error message of each skipped file or line.
    """

    on_resume: Callable[[int], object] = lambda done: None
    on_restart: Callable[[list[str]], object] = lambda changes: None
    on_progress: Callable[[int, int], object] = lambda done, n_tokens: None
    on_skip: Callable[[object], object] = lambda problem: None


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
        stamp: list[object] = [os.fspath(file.absolute())]
        with suppress(FileNotFoundError):  # a file may vanish while a job runs
            status = file.stat()
            stamp += [status.st_size, status.st_mtime_ns]
        stamps.append(json.dumps(stamp))
    return [*accumulate(stamps, _digest, initial="")]


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def partial_folder(out: Path) -> Path:
    """Return the path of the folder that keeps unfinished work on the output file `out`.

    If `out` is a link, the folder is beside the link's target.
    """
    target = followed(out)
    return target.with_name(f"{target.name}.partial")


@dataclass
class AppendLog:
    """Append-only files and their journal, in a folder that one job at a time can lock.

    Use the log in a `with` statement, and call `remove` when the output is complete. After an
    interruption, the folder is kept if the journal has a resume point.
    """

    folder: Path
    names: Sequence[str]  # names of the files in the folder
    _files: list[IO[bytes]] = field(default_factory=list, init=False)
    _checksums: list[int] = field(default_factory=list, init=False)
    _lock: int | None = field(default=None, init=False)
    _saved_at: float = field(default_factory=time.monotonic, init=False)

    @property
    def paths(self) -> list[Path]:
        """Paths of the append-only files."""
        return [self.folder / name for name in self.names]

    @property
    def scratch(self) -> Path:
        """Path in the log's folder for a temporary file of the caller."""
        return self.folder / _SCRATCH

    @property
    def lengths(self) -> tuple[int, ...]:
        """Length of each append-only file, in bytes."""
        return tuple(file.tell() for file in self._files)

    @property
    def checksums(self) -> tuple[int, ...]:
        """CRC-32 of each append-only file."""
        return tuple(self._checksums)

    def resume(
        self, task: Task, callbacks: JobCallbacks | None = None, *, force: bool = False
    ) -> ResumePoint:
        """Lock the folder, truncate the files to the last resume point, and return the point.

        If the folder has results of another task, `force` discards the results that are not valid
        for `task`.

        Raises:
            InvalidArgumentError: the folder has results of another task, and `force` is false.
            GPT2NPError: another job uses the folder; or it is not a folder of unfinished work.
        """
        callbacks = callbacks or JobCallbacks()
        self._check_links()
        self._lock = _acquire_lock(self.folder / _LOCK)
        if self._lock is None:
            raise GPT2NPError(
                f"another process is writing to {self.folder}, or another thread of this process; "
                "wait for it to end, or choose another output file"
            )
        self._check_foreign()
        self._files = [path.open("ab") for path in self.paths]
        saved = self._read_journal()
        points = self._matching(saved)
        changes = [*_changes(_read_task(self.folder), task)] if points else []
        none = (0,) * len(self.names)
        last = ResumePoint(lengths=none, rollback_lengths=none, checksums=none)
        digests = {} if changes else task.digests([point.files_started for point in points])
        for point in () if changes else points:
            if point.digest == digests.get(point.files_started):
                last = point
            elif point.files > last.files:  # a file that was read only in part may be repaired
                source = task.describe_input(last.files, point.files_started)
                changes = [f"{source} has changed"]
                break
        if changes and not force:
            raise InvalidArgumentError(
                "{0} has the results of an unfinished job, but {1}; undo the change to go on, or "
                "give {force.setting} to start over",
                self.folder,
                "; ".join(changes),
                force=True,
            )
        if saved and not points:
            changes.append("its files have been truncated or changed")
        self._truncate(last.lengths, last.checksums)
        self._replace(_TASK, task.as_json())
        if changes:
            callbacks.on_restart(changes)
        if last.done:
            callbacks.on_resume(last.done)
        return last

    def _matching(self, points: Sequence[ResumePoint]) -> list[ResumePoint]:
        """Return the resume points whose checksums match the files."""
        matching = [*points]
        for i, path in enumerate(self.paths):
            found = _prefix_checksums(path, [point.lengths[i] for point in matching])
            matching = [p for p in matching if found.get(p.lengths[i]) == p.checksums[i]]
        return matching

    def _check_links(self) -> None:
        """Raise GPT2NPError if the folder or one of the log's files is a link; change nothing."""
        try:
            is_folder = stat.S_ISDIR(self.folder.lstat().st_mode)
        except FileNotFoundError:
            return
        if not is_folder:
            raise GPT2NPError(
                f"{self.folder}, where unfinished work is kept, is a link or not a folder; move it "
                "elsewhere"
            )
        for path in self._own_paths:
            with suppress(FileNotFoundError):
                status = path.lstat()
                if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                    raise self._foreign(path.name)

    def _check_foreign(self) -> None:
        """Raise GPT2NPError, and release the lock, if the folder has files of other programs."""
        own = {path.name for path in self._own_paths}
        if not (self.folder / _TASK).exists():
            for path in self.folder.iterdir():
                if path.name not in own:
                    self._drop_lock()  # now __exit__ removes nothing
                    raise self._foreign(path.name)

    def _foreign(self, name: str) -> GPT2NPError:
        return GPT2NPError(
            f"{self.folder}, where unfinished work is kept, has a foreign file or link, {name}; "
            "move it away"
        )

    def append(self, *contents: bytes) -> None:
        """Append one item of `contents` to each file."""
        for i, (path, content) in enumerate(zip(self.paths, contents, strict=True)):
            with errors_name(path):
                self._files[i].write(content)
            self._checksums[i] = crc32(content, self._checksums[i])

    def truncate(self, lengths: Sequence[int]) -> None:
        """Truncate the files to `lengths`, and drop resume points with greater lengths."""
        for file in self._files:
            file.flush()
        ends = zip(self.paths, lengths, strict=True)
        self._truncate(lengths, [_prefix_checksums(path, (end,))[end] for path, end in ends])

    def _truncate(self, lengths: Sequence[int], checksums: Sequence[int]) -> None:
        kept = [point for point in self._read_journal() if not _any_longer(point.lengths, lengths)]
        self._replace(_JOURNAL, "".join(map(_journal_line, kept)))
        for file, length in zip(self._files, lengths, strict=True):
            file.truncate(length)
            file.seek(length)
        self._checksums = [*checksums]

    def save(self, point: ResumePoint, *, force: bool = False) -> None:
        """Flush the files to the disk, then append the resume point `point` to the journal.

        Without `force`, the call has no effect if the last call was less than a second ago.
        """
        if not force and time.monotonic() < self._saved_at + _SAVE_INTERVAL_S:
            return
        for path, file in zip(self.paths, self._files, strict=True):
            with errors_name(path):
                file.flush()
                os.fsync(file.fileno())
        with (
            errors_name(self._journal_path),
            self._journal_path.open("a", encoding="utf-8") as journal,
        ):
            journal.write(_journal_line(point))
        self._saved_at = time.monotonic()

    def close(self) -> None:
        """Flush and close the append-only files."""
        for file in self._files:
            file.close()

    def remove(self) -> None:
        """Close and remove the files, then remove the folder, unless foreign files are in it."""
        self.close()
        if self._lock is None:
            return
        for path in self._own_paths:
            if path.name != _LOCK:
                path.unlink(missing_ok=True)
        self._drop_lock()

    def _drop_lock(self) -> None:
        """Remove the lock, and the folder if it is empty now."""
        assert self._lock is not None
        if sys.platform == "win32":
            _release_lock(self._lock)  # Windows can't remove an open file
        with suppress(OSError):  # another job has started to use the folder
            (self.folder / _LOCK).unlink()
            self.folder.rmdir()
        _release_lock(self._lock)
        self._lock = None

    def __enter__(self) -> AppendLog:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.close()
        finally:
            if self._lock is not None and not self._read_journal():
                self.remove()
            elif self._lock is not None:
                _release_lock(self._lock)

    @property
    def _own_paths(self) -> list[Path]:
        return [*self.paths, *(self.folder / name for name in (_JOURNAL, _TASK, _LOCK, _SCRATCH))]

    def _replace(self, name: str, text: str) -> None:
        with errors_name(self.folder / name):
            self.scratch.write_text(text, encoding="utf-8")
            self.scratch.replace(self.folder / name)

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


def _prefix_checksums(path: Path, ends: Iterable[int]) -> dict[int, int]:
    """Return {n: CRC-32 of the first n bytes} for each n of `ends` within the file."""
    checksums, checksum, position = {}, 0, 0
    with path.open("rb") as file:
        for end in sorted(set(ends)):
            while position < end and (data := file.read(min(end - position, _READ_BYTES))):
                checksum = crc32(data, checksum)
                position += len(data)
            if position == end:
                checksums[end] = checksum
    return checksums


def _journal_line(point: ResumePoint) -> str:
    """Return a line with the CRC-32 of the resume point, and the resume point as JSON."""
    text = json.dumps(asdict(point))
    return f"{crc32(text.encode()):08x} {text}\n"


def _parse_journal_line(line: str) -> ResumePoint | None:
    checksum, _, text = line.partition(" ")
    if f"{crc32(text.encode(errors='replace')):08x}" != checksum:
        return None  # after a power failure the disk may hold anything
    content = json.loads(text)
    tuples = ("lengths", "rollback_lengths", "checksums")
    return ResumePoint(**{**content, **{name: tuple(content[name]) for name in tuples}})


_locks: set[int] = set()  # file descriptors of the locks that this process holds


def _acquire_lock(path: Path) -> int | None:
    """Create, open and lock the file `path`; return None if another job holds the lock."""
    while True:
        with suppress(FileExistsError):
            path.parent.mkdir()
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:  # another job has removed the folder since mkdir
            continue
        _locks.add(file)
        try:
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            _release_lock(file)
            return None
        except OSError:  # a file system without locks
            pass
        with suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(file)):
                return file
        _release_lock(file)  # another job has removed the file since it was opened


def _release_lock(file: int) -> None:
    if file in _locks:
        _locks.remove(file)
        os.close(file)


if hasattr(os, "register_at_fork"):
    # A worker process may outlive its killed parent, and must not hold the parent's locks.
    os.register_at_fork(after_in_child=lambda: [*map(_release_lock, [*_locks])])
