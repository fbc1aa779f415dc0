"""Jobs that resume: results are appended to files in a folder beside the output.

    out.jsonl.partial/
        lock            locked while a run writes here
        task.json       the settings of the job
        stream-0, …     the results, appended
        progress.jsonl  a line for each save: position in the input, sizes of the streams
        finished        the inode of the finished output, which is then moved to its place
        state.npz       state of a training run, which has no streams

A save flushes the streams to the disk, and then appends a line to progress.jsonl. The next run cuts
the streams at the sizes of the last whole line, and goes on from its position; if the settings or
the input read so far have changed, an error names the change. At the end, the output is renamed to
its place.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from filelock import FileLock, Timeout

from gpt2np.data.corpus import UnreadableFileError, kind_of
from gpt2np.data.files import atomic_write_text, check_target, followed, writing
from gpt2np.data.parquet import import_pyarrow
from gpt2np.errors import GPT2NPError, InvalidArgumentError, short_repr

SAVE_SECONDS = 5.0
STATE = "state.npz"
_LOCK, _TASK, _PROGRESS, _OUTPUT = "lock", "task.json", "progress.jsonl", "output"
_FINISHED = "finished"


class Position(NamedTuple):
    """How much of the input has been read."""

    inputs: int = 0  # number of input files (or lines of the only file) read to the end
    batches: int = 0  # number of batches read from the next input
    done: int = 0  # total progress, in bytes or lines

    @property
    def started(self) -> int:
        """Number of inputs that were read, completely or in part."""
        return self.inputs + (self.batches > 0)


START = Position()


class Results(NamedTuple):
    """The results for a part of the input, to append to the streams."""

    contents: tuple[bytes, ...]  # one item for each stream, such as ids and lengths of documents
    problems: Sequence[object] = ()  # an error message for each document or file that is skipped
    n_tokens: int = 0


class Step(NamedTuple):
    """Results of a job, the position after them, and the stamp of the last input they read."""

    position: Position
    stamp: Any  # a JSON value that changes when the input changes
    results: Results


@dataclass(frozen=True)
class Job:
    """A resumable job. To resume, the settings and the inputs read so far must be equal.

    Attributes:
        settings: JSON values by name. An error shows the values, or for a name that begins with
            "the ", only the name.
        stamps: a function that returns the current stamps of the first n inputs.
        describe: a function that names the input of an index in an error message.
        steps: a function that yields the results of the input after a position.
        assemble: a function of the streams' paths and an output path. It may write the output; if
            it does not, the first stream becomes the output. Its result is `Outcome.result`.
        n_streams: number of streams.
    """

    settings: Mapping[str, Any]
    stamps: Callable[[int], list[Any]]
    describe: Callable[[int], str]
    steps: Callable[[Position], Iterator[Step]]
    assemble: Callable[[Sequence[Path], Path], Any]
    n_streams: int = 1


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
    """Run a job, or resume it, and write the output `out`. Without results, nothing is written.

    `force` overwrites an existing file, and discards unfinished work with other settings or input.

    Raises:
        InvalidArgumentError: `out` exists, or an unfinished job has other settings or input, and
            `force` is false.
        GPT2NPError: another job writes to `out`, or the input changes while the job runs.
        WriteError: the files can't be written.
    """
    callbacks = callbacks or JobCallbacks()
    with work_folder(out) as folder, writing(out):
        check_target(out, force=force)
        saved = _resume(folder, job, callbacks, force)
        paths = [folder / f"stream-{n}" for n in range(job.n_streams)]
        with ExitStack() as stack:
            streams = [stack.enter_context(path.open("ab")) for path in paths]
            for stream, size in zip(streams, saved.last.sizes, strict=True):
                stream.truncate(size)
                stream.seek(size)  # else tell() counts from the former end until the first flush
            n_tokens = _append(job, saved, streams, folder / _PROGRESS, callbacks)
        if (changed := _changed_input(job, saved)) is not None:
            raise GPT2NPError(
                f"{changed} has changed while it was read; run it again with `force=True`"
            )
        output = folder / f"{_OUTPUT}{out.suffix}"
        result = job.assemble(paths, output)
        source = output if output.exists() else paths[0]
        if source.stat().st_size:
            check_target(out, force=force)  # another program may have made it meanwhile
            with source.open("rb+") as file:
                os.fsync(file.fileno())
            (folder / _FINISHED).write_text(f"{source.stat().st_ino}", encoding="utf-8")
            source.replace(followed(out))
        (folder / _PROGRESS).unlink(missing_ok=True)
    return Outcome(result, saved.last.n_skipped, n_tokens)


def check_output(
    out: Path, suffixes: Sequence[str], *, force: bool, inputs: Iterable[Path | None] = ()
) -> None:
    """Raise a GPT2NPError if a job can't write `out`: see `check_target`.

    If a process was killed right after it had written `out`, its folder is removed.
    """
    folder = partial_folder(out)
    with suppress(OSError, GPT2NPError):  # there is no such file, or another job runs
        if (folder / _FINISHED).read_text(encoding="utf-8") == f"{out.stat().st_ino}":
            with work_folder(out):
                (folder / _PROGRESS).unlink(missing_ok=True)
    check_target(out, suffixes, force=force, inputs=inputs)
    if kind_of(out) == ".parquet":
        import_pyarrow()


def partial_folder(out: Path) -> Path:
    """Return the path of the folder that keeps unfinished work on the output `out`.

    If `out` is a link, the folder is beside the link's target.
    """
    target = followed(out)
    return target.with_name(f"{target.name}.partial")


def read_settings(out: Path) -> dict[str, Any]:
    """Return the settings of the unfinished job for the output `out`, or {} if there is none."""
    try:
        return dict(json.loads((partial_folder(out) / _TASK).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def file_stamp(file: Path) -> list[Any]:
    """Return a file's path, size and modification time; a changed file has another stamp."""
    status = file.stat()
    return [os.fspath(file.absolute()), status.st_size, status.st_mtime_ns]


@contextmanager
def work_folder(out: Path) -> Iterator[Path]:
    """Create and lock the folder of unfinished work on `out`; remove it if nothing can be resumed.

    Raises GPT2NPError if another job uses the folder, and WriteError if it can't be created.
    """
    folder = partial_folder(out)
    with writing(out):
        lock = _lock(folder)
    try:
        yield folder
    finally:
        if not any((folder / name).exists() for name in (_PROGRESS, STATE)):
            for pattern in (_TASK, _FINISHED, "new", f"{_OUTPUT}*", "stream-*"):
                for path in folder.glob(pattern):
                    path.unlink()
            if sys.platform == "win32":
                lock.release()  # Windows can't remove an open file
            with suppress(OSError):  # foreign files, or another job has started to use the folder
                (folder / _LOCK).unlink(missing_ok=True)
                folder.rmdir()
        lock.release()


def _lock(folder: Path) -> FileLock:
    while True:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            with suppress(FileNotFoundError):  # one look: another job may remove and make it again
                if not stat.S_ISDIR(folder.lstat().st_mode):
                    raise GPT2NPError(f"{folder} is not a folder; rename it") from None
        lock = FileLock(folder / _LOCK)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise GPT2NPError(
                f"another process is writing to {folder}, or another thread of this process; "
                "wait for it to end, or choose another output file"
            ) from None
        except (FileNotFoundError, FileExistsError):  # another job has removed the folder meanwhile
            continue
        if (folder / _LOCK).exists():
            return lock
        lock.release()


def begin_task(folder: Path, settings: Mapping[str, Any], *, has_work: bool, force: bool) -> None:
    """Write task.json, the settings of the job in a folder that may already have work.

    Raises InvalidArgumentError if the work belongs to other settings, and `force` is false.
    """
    if has_work and not force and (changes := [*_changes(folder, settings)]):
        raise _changed_error(folder, changes)
    atomic_write_text(folder / _TASK, json.dumps(settings, default=repr))


def _changed_error(folder: Path, changes: Sequence[str]) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{folder} has the results of an unfinished job, but {'; '.join(changes)}; undo the change "
        "to go on, or start over with `force=True`"
    )


def _changes(folder: Path, settings: Mapping[str, Any]) -> Iterator[str]:
    """Describe each difference between the settings and those in task.json."""
    before = read_settings(folder.with_name(folder.name.removesuffix(".partial")))
    after = json.loads(json.dumps(settings, default=repr))
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if old != new and name.startswith("the "):
            yield f"{name} has changed"
        elif old != new:
            argument = f"`{name}`" if name.isidentifier() else name
            yield f"{argument} was {_show(old)}, is {_show(new)}"


def _show(value: object) -> str:
    return "not given" if value is None else short_repr(value)


class _Point(NamedTuple):
    """A position in the input, and what the streams hold of the input before it."""

    position: Position
    sizes: list[int]  # of the streams, in bytes
    n_skipped: int


@dataclass
class _Saved:
    """The progress of a job. `last` is replaced as a whole, since Ctrl-C may come at any time."""

    last: _Point
    whole: _Point  # the last point at the end of an input
    stamps: list[Any] = field(default_factory=list)  # of the inputs that were started
    n_stamps_saved: int = 0  # how many of the stamps progress.jsonl has
    length: int = 0  # of progress.jsonl

    def save(self, streams: Sequence[BinaryIO], progress: Path) -> None:
        """Flush the streams to the disk, then append a line to progress.jsonl."""
        for stream in streams:
            stream.flush()
            os.fsync(stream.fileno())
        n_stamps = self.last.position.started
        entry = [*self.last, self.stamps[self.n_stamps_saved : n_stamps]]
        line = json.dumps(entry).encode() + b"\n"
        with progress.open("ab") as file:
            file.truncate(self.length)  # drops half a line of a failed save
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self.n_stamps_saved, self.length = n_stamps, self.length + len(line)


def _nothing_saved(n_streams: int) -> _Saved:
    point = _Point(START, [0] * n_streams, 0)
    return _Saved(point, point)


def _resume(folder: Path, job: Job, callbacks: JobCallbacks, force: bool) -> _Saved:
    """Return the progress that is valid for `job`, and write the job's settings.

    Raises InvalidArgumentError if there is progress of another job, and `force` is false.
    """
    saved = _read_progress(folder, job.n_streams)
    changes = [*_changes(folder, job.settings)] if saved.length else []
    if not changes and (changed := _changed_input(job, saved)) is not None:
        changes = [f"{changed} has changed"]
    if changes and not force:
        raise _changed_error(folder, changes)
    if changes:
        callbacks.on_restart(changes)
        (folder / _PROGRESS).unlink()
        saved = _nothing_saved(job.n_streams)
    begin_task(folder, job.settings, has_work=False, force=force)
    if saved.last.position.done:
        callbacks.on_resume(saved.last.position.done)
    return saved


def _read_progress(folder: Path, n_streams: int) -> _Saved:
    """Return the progress of the last whole line that fits the streams."""
    path = folder / _PROGRESS
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    entries = [json.loads(line) for line in lines if line.endswith(b"\n")]
    streams = [folder / f"stream-{n}" for n in range(n_streams)]
    actual = [stream.stat().st_size if stream.exists() else 0 for stream in streams]
    while entries and any(map(int.__gt__, entries[-1][1], actual)):
        entries.pop()  # the results were lost, for example in a power failure
    saved = _nothing_saved(n_streams)
    for position, sizes, n_skipped, stamps in entries:
        saved.last = _Point(Position(*position), sizes, n_skipped)
        saved.whole = saved.whole if saved.last.position.batches else saved.last
        del saved.stamps[saved.last.position.started - len(stamps) :]
        saved.stamps += stamps
    saved.n_stamps_saved = len(saved.stamps)
    saved.length = sum(map(len, lines[: len(entries)]))
    return saved


def _changed_input(job: Job, saved: _Saved) -> str | None:
    """Return the name of the first input that has changed since it was read."""
    today = job.stamps(len(saved.stamps))
    for index, stamp in enumerate(saved.stamps):
        if index >= len(today) or today[index] != stamp:
            return job.describe(index)
    return None


def _append(
    job: Job,
    saved: _Saved,
    streams: Sequence[BinaryIO],
    progress: Path,
    callbacks: JobCallbacks,
) -> int:
    """Append the results after the saved position; return the number of new tokens.

    If a file can't be read, the results of that file are not kept: it will be changed.
    """
    n_tokens, last_save, last_saved = 0, time.monotonic(), saved.last
    try:
        for position, stamp, results in job.steps(saved.last.position):
            for stream, content in zip(streams, results.contents, strict=True):
                stream.write(content)
            saved.stamps += [stamp] * (position.started - len(saved.stamps))
            n_skipped = saved.last.n_skipped + len(results.problems)
            saved.last = _Point(position, [stream.tell() for stream in streams], n_skipped)
            saved.whole = saved.whole if position.batches else saved.last
            if time.monotonic() >= last_save + SAVE_SECONDS:
                saved.save(streams, progress)
                last_save, last_saved = time.monotonic(), saved.last
            n_tokens += results.n_tokens
            for problem in results.problems:
                callbacks.on_skip(problem)
            callbacks.on_progress(position.done, n_tokens)
    except UnreadableFileError:
        saved.last = saved.whole if saved.length else last_saved
        del saved.stamps[saved.last.position.started :]
        saved.n_stamps_saved = min(saved.n_stamps_saved, len(saved.stamps))
        raise
    finally:
        if saved.last != last_saved:
            saved.save(streams, progress)
    return n_tokens


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write under another name; then flush it to the disk, and rename it."""
    new = path.with_name("new")
    with writing(path):
        with new.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
