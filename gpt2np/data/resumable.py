"""Jobs that resume: finished parts in a folder beside the output, joined at the end.

    out.jsonl.partial/
        lock                     locked while a run writes here
        task.json                what the job is: settings, and digests of model or vocabulary
        part-00000000-9ae0daaf   results of some consecutive input; the name has their CRC-32
        part-00000001-1d2f00c8   a later part begins where the part before it ends
        state.npz                state of a training run, which has no parts
        new, output              what is being written

A run finishes a part every few seconds: the part is written to `new`, flushed to the disk, and
renamed. A killed run therefore loses only the results since the last part. The next run goes on
after the last part; if the settings or the input read so far have changed, an error names the
change. At the end, the parts are joined to `output`, which is renamed to the output file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from zlib import crc32

from filelock import FileLock, Timeout

from gpt2np.data.corpus import UnreadableFileError
from gpt2np.data.files import check_output_file, errors_name, followed, move_into_place
from gpt2np.errors import GPT2NPError, InvalidArgumentError, short_repr

PART_SECONDS = 5.0
_PART_BYTES = 16 << 20  # a part is held in memory until it is finished
_FORMAT = 2  # of the folder; version 1 had a journal
_LOCK, _TASK, _NEW, _OUTPUT = "lock", "task.json", "new", "output"
STATE = "state.npz"
_PART_NAME = re.compile(r"part-(\d{8,})-([0-9a-f]{8})")


class Position(NamedTuple):
    """How much of the input has been read."""

    files: int = 0  # number of input files (or lines of the only file) read to the end
    batches: int = 0  # number of batches read from the next input file
    done: int = 0  # total progress, in bytes or lines
    digest: str = ""  # digest of the files that were started

    @property
    def files_started(self) -> int:
        """Number of input files that were read, completely or in part."""
        return self.files + (self.batches > 0)


class Results(NamedTuple):
    """What a job has made of some consecutive input."""

    contents: tuple[bytes, ...]  # one item for each stream, such as ids and lengths of documents
    problems: Sequence[object] = ()  # an error message for each document or file that is skipped
    n_tokens: int = 0


ReadStream = Callable[[int], Iterator[bytes]]
"""`read(n)` yields the contents of stream n of all parts, in order."""


@dataclass(frozen=True)
class Job:
    """A resumable job. To resume, the settings and the input read so far must be equal.

    Attributes:
        settings: JSON values by name; an error shows the values.
        fingerprints: digests by name, such as "the model"; an error shows only the name.
        digests: a function that returns {n: digest of the first n input files (or lines)} for given
            numbers n; numbers beyond the end are left out.
        describe_input: a function (start, stop) that names the input files (or lines) from index
            `start` to `stop` - 1 for error messages.
        steps: a function that yields the results of the input after a position, and the position
            after each. At the end of the input, the function raises GPT2NPError if the input has
            changed meanwhile.
        assemble: a function that writes the output to a path, and returns what to tell about it. It
            writes nothing if there is no result.
        harmless: settings, with the values to which they may change before a job is resumed.
    """

    settings: Mapping[str, Any]
    fingerprints: Mapping[str, str]
    digests: Callable[[Iterable[int]], Mapping[int, str]]
    describe_input: Callable[[int, int], str]
    steps: Callable[[Position], Iterator[tuple[Position, Results]]]
    assemble: Callable[[ReadStream, Path], Any]
    harmless: Mapping[str, Any] = field(default_factory=dict)


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


class Outcome(NamedTuple):
    """Result of a job: what `assemble` has returned, and counts of all runs and of this run."""

    result: Any
    n_skipped: int  # in all runs
    n_tokens: int  # in this run


def run_job(
    job: Job, out: Path, callbacks: JobCallbacks | None = None, *, force: bool = False
) -> Outcome:
    """Run a job, or resume it, and write the output `out`.

    `force` overwrites an existing file, and discards unfinished work with other settings or input.

    Raises:
        InvalidArgumentError: `out` exists, or an unfinished job has other settings or input, and
            `force` is false.
        GPT2NPError: another job writes to `out`, or the input changes while the job runs.
        OSError: the files can't be written.
    """
    callbacks = callbacks or JobCallbacks()
    check_output_file(out, overwrite=force)
    with work_folder(out) as folder:
        check_output_file(out, overwrite=force)  # the last run with the lock may have written it
        n_parts, n_tokens = _run(folder, job, _resume(folder, job, callbacks, force), callbacks)
        parts, _ = _read_parts(folder)
        if len(parts) != n_parts:
            raise GPT2NPError(f"files in {folder} have changed meanwhile; run the job again")
        output = output_folder(folder) / out.name
        with errors_name(output):
            result = job.assemble(lambda stream: (part.read(stream) for part in parts), output)
            if output.exists():
                move_into_place(output, out, overwrite=force)
        for part in reversed(parts):
            part.path.unlink()
    return Outcome(result, sum(part.n_skipped for part in parts), n_tokens)


def partial_folder(out: Path) -> Path:
    """Return the path of the folder that keeps unfinished work on the output `out`.

    If `out` is a link, the folder is beside the link's target.
    """
    target = followed(out)
    return target.with_name(f"{target.name}.partial")


def read_settings(out: Path) -> dict[str, Any]:
    """Return the settings of the unfinished job for the output `out`, or {} if there is none."""
    task = _read_task(partial_folder(out))
    return task["settings"] if task else {}


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

    def add(digest: str, stamp: str) -> str:
        return hashlib.sha256(f"{digest}\n{stamp}".encode()).hexdigest()

    return [*accumulate(stamps, add, initial="")]


@contextmanager
def work_folder(out: Path) -> Iterator[Path]:
    """Create and lock the folder of unfinished work on `out`.

    On exit, remove the folder if it holds no results.

    Raises:
        GPT2NPError: another job uses the folder; or the folder is not one of unfinished work of
            this version of gpt2np.
    """
    folder = partial_folder(out)
    _check_folder(folder)
    lock = _lock(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder / _OUTPUT, ignore_errors=True)
        (folder / _NEW).unlink(missing_ok=True)
        if not _part_paths(folder) and not (folder / STATE).exists():
            (folder / _TASK).unlink(missing_ok=True)
            if sys.platform == "win32":
                lock.release()  # Windows can't remove an open file
            with suppress(OSError):  # foreign files, or another job has started to use the folder
                (folder / _LOCK).unlink(missing_ok=True)
                folder.rmdir()
        lock.release()


def output_folder(folder: Path) -> Path:
    """Return a new folder for the output within a work folder, which must have a task."""
    shutil.rmtree(folder / _OUTPUT, ignore_errors=True)  # of a run that was killed
    (folder / _OUTPUT).mkdir()
    return folder / _OUTPUT


def _lock(folder: Path) -> FileLock:
    lock = FileLock(folder / _LOCK)
    while True:
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise GPT2NPError(
                f"another process is writing to {folder}, or another thread of this process; "
                "wait for it to end, or choose another output file"
            ) from None
        except (FileNotFoundError, FileExistsError):  # another job has removed the folder meanwhile
            continue
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):  # a file system without locks
                raise
        return lock


def _check_folder(folder: Path) -> None:
    """Raise GPT2NPError if the folder may have another purpose, or another version's work."""
    try:
        is_folder = stat.S_ISDIR(folder.lstat().st_mode)
        paths = [*folder.iterdir()] if is_folder else []
    except FileNotFoundError:
        return
    if not is_folder:
        raise GPT2NPError(
            f"{folder}, where unfinished work is kept, is a link or not a folder; move it elsewhere"
        )
    has_task = any(path.name == _TASK for path in paths)
    for path in paths:
        if _is_foreign(path, has_task):
            raise GPT2NPError(
                f"{folder}, where unfinished work is kept, has a foreign file or link, "
                f"{path.name}; move it away"
            )
    if _read_task(folder) is None and (folder / _TASK).exists():
        raise GPT2NPError(
            f"{folder} has unfinished work that this version of gpt2np cannot read; finish it with "
            "the version that began it, or remove the folder"
        )


def _is_foreign(path: Path, has_task: bool) -> bool:
    """Return whether a file prevents the use of its folder, which may have a task."""
    if path.name.startswith(".filelock-probe-"):  # a test of the library filelock, in another job
        return False
    is_file = path.name in (_LOCK, _NEW, _TASK, STATE) or bool(_PART_NAME.fullmatch(path.name))
    if not has_task and path.name not in (_LOCK, _NEW):
        return True
    try:
        status = path.lstat()
    except FileNotFoundError:  # removed by another job
        return False
    if is_file:
        return not stat.S_ISREG(status.st_mode) or status.st_nlink > 1
    return path.name == _OUTPUT and not stat.S_ISDIR(status.st_mode)


def _resume(folder: Path, job: Job, callbacks: JobCallbacks, force: bool) -> Sequence[_Part]:
    """Return the parts that are valid for `job`, and remove the others.

    Raises InvalidArgumentError if parts are of another task, and `force` is false.
    """
    task = _read_task(folder)
    parts, damaged = _read_parts(folder)
    changes: list[str] = []
    if task and parts:
        changes += _changes(task, job.settings, job.fingerprints, job.harmless.items())
    digests = {} if changes else job.digests([part.position.files_started for part in parts])
    valid: list[_Part] = []
    last = Position()
    for part in () if changes else parts:
        started = part.position.files_started
        if part.position.digest != digests.get(started):
            changes = [f"{_escape(job.describe_input(last.files, started))} has changed"]
            break
        valid.append(part)
        last = part.position
    names = {**task["settings"], **job.settings} if task else job.settings
    if changes and not force:
        raise _changed_error(folder, changes, names)
    if damaged:
        changes.append(f"{damaged[0].name} is damaged, or the part before it is missing")
    for path in reversed(_part_paths(folder)[len(valid) :]):
        path.unlink()
    write_task(folder, job.settings, job.fingerprints)
    if changes:
        plain = {name: name for name in names}
        callbacks.on_restart([change.format(**plain) for change in changes])
    if last.done:
        callbacks.on_resume(last.done)
    return valid


def begin_task(folder: Path, settings: Mapping[str, Any], fingerprints: Mapping[str, str]) -> None:
    """Write task.json in a work folder for a job with a state instead of parts.

    Raises InvalidArgumentError if the saved state belongs to another task.
    """
    task = _read_task(folder)
    if task and (folder / STATE).exists():
        changes = [*_changes(task, settings, fingerprints)]
        if changes:
            raise _changed_error(folder, changes, {**task["settings"], **settings})
    write_task(folder, settings, fingerprints)


def _changed_error(
    folder: Path, changes: Iterable[str], settings: Mapping[str, Any]
) -> InvalidArgumentError:
    message = f"{{0}} has the results of an unfinished job, but {'; '.join(changes)}; "
    message += "undo the change to go on, or give {force.setting} to start over"
    return InvalidArgumentError(message, folder, force=True, **settings)


def write_task(folder: Path, settings: Mapping[str, Any], fingerprints: Mapping[str, str]) -> None:
    """Write task.json, which tells later runs that the files in the folder are gpt2np's."""
    content = {"format": _FORMAT, "settings": settings, "fingerprints": fingerprints}
    _write(folder / _TASK, json.dumps(content, default=repr).encode())


def _changes(
    task: Mapping[str, Mapping[str, Any]],
    settings: Mapping[str, Any],
    fingerprints: Mapping[str, str],
    harmless: Collection[tuple[str, Any]] = (),
) -> Iterator[str]:
    """Describe each difference from a stored task, except settings with a new value in `harmless`.

    A description is a template, in which `{name}` is the name of a setting.
    """
    for name in {**task["fingerprints"], **fingerprints}:
        if task["fingerprints"].get(name) != fingerprints.get(name):
            yield f"{name} has changed"
    after = json.loads(json.dumps(settings, default=repr))
    for name in {**task["settings"], **after}:
        old, new = task["settings"].get(name), after.get(name)
        if old != new and (name, new) not in harmless:
            yield f"{{{name}}} was {_show(old)}, is {_show(new)}"


def _show(value: object) -> str:
    return "not given" if value is None else _escape(short_repr(value))


def _escape(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _read_task(folder: Path) -> dict[str, dict[str, Any]] | None:
    """Return the settings and fingerprints in task.json; None if there are none of this version."""
    try:
        content = json.loads((folder / _TASK).read_text(encoding="utf-8"))
        if content["format"] == _FORMAT:
            return {name: dict(content[name]) for name in ("settings", "fingerprints")}
    except (OSError, ValueError, TypeError, KeyError):
        pass
    return None


def _run(
    folder: Path, job: Job, parts: Sequence[_Part], callbacks: JobCallbacks
) -> tuple[int, int]:
    """Compute and write what follows `parts`; return the number of parts and of new tokens."""
    unsaved, n_tokens = _UnsavedPart(len(parts)), 0
    try:
        for position, results in job.steps(parts[-1].position if parts else Position()):
            unsaved.steps.append((position, results))
            unsaved.n_bytes += sum(map(len, results.contents))
            n_tokens += results.n_tokens
            if unsaved.is_due():
                unsaved.write(folder)
                unsaved = _UnsavedPart(unsaved.number + 1)
            for problem in results.problems:
                callbacks.on_skip(problem)
            callbacks.on_progress(position.done, n_tokens)
    except UnreadableFileError:  # the file will be changed before the next run: drop its results
        for part in reversed(_read_parts(folder)[0]):
            if not part.position.batches:
                break
            part.path.unlink()
        raise
    except BaseException:
        unsaved.write(folder)
        raise
    unsaved.write(folder)
    return unsaved.number + bool(unsaved.steps), n_tokens


@dataclass
class _UnsavedPart:
    """Results in memory that will be the part with the given number."""

    number: int
    steps: list[tuple[Position, Results]] = field(default_factory=list)
    n_bytes: int = 0
    started: float = field(default_factory=time.monotonic)

    def is_due(self) -> bool:
        """Return whether the part is large or old enough to be written."""
        return self.n_bytes >= _PART_BYTES or time.monotonic() >= self.started + PART_SECONDS

    def write(self, folder: Path) -> None:
        """Write the part, unless it is empty. After an interruption, the call can be repeated."""
        if not self.steps:
            return
        contents = (results.contents for _, results in self.steps)
        streams = [*map(b"".join, zip(*contents, strict=True))]
        header = {
            **self.steps[-1][0]._asdict(),
            "n_skipped": sum(len(results.problems) for _, results in self.steps),
            "sizes": [*map(len, streams)],
        }
        content = b"".join([json.dumps(header).encode(), b"\n", *streams])
        _write(folder / _part_name(self.number, content), content)


class _Part(NamedTuple):
    """A finished part on the disk: a line of JSON, then the streams."""

    path: Path
    position: Position  # at its end
    n_skipped: int
    sizes: list[int]  # of the streams, in bytes

    def read(self, stream: int) -> bytes:
        with self.path.open("rb") as file:
            file.readline()
            file.seek(sum(self.sizes[:stream]), os.SEEK_CUR)
            return file.read(self.sizes[stream])


def _read_parts(folder: Path) -> tuple[list[_Part], list[Path]]:
    """Return the parts before the first gap or damaged part, and the paths of the other parts."""
    parts: list[_Part] = []
    paths = _part_paths(folder)
    for path in paths:
        content = path.read_bytes()
        if path.name != _part_name(len(parts), content):
            break
        header = json.loads(content[: content.index(b"\n")])
        n_skipped, sizes = header.pop("n_skipped"), header.pop("sizes")
        parts.append(_Part(path, Position(**header), n_skipped, sizes))
    return parts, paths[len(parts) :]


def _part_name(number: int, content: bytes) -> str:
    return f"part-{number:08}-{crc32(content):08x}"


def _part_paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if _PART_NAME.fullmatch(path.name))


def _write(path: Path, content: bytes) -> None:
    """Write a file of a work folder to the disk; see `new_file`."""
    with new_file(path) as file:
        file.write(content)


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write under another name; then flush it to the disk, and rename it."""
    new = path.with_name(_NEW)
    with errors_name(path):
        with new.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
