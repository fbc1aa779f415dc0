"""The loop of every resumable job: results in the order of the input, appended to a log.

`generate --prompts`, `encode` and `score` are such jobs. A job yields steps: the results of some
consecutive input, with the position in the input after it. The loop appends the results, reports
problems and progress, and saves resume points. A job that was interrupted, even by SIGKILL, goes on
at the last resume point.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from gpt2np import __version__
from gpt2np.data.append_log import (
    AppendLog,
    JobCallbacks,
    ResumePoint,
    Task,
    input_digests,
    partial_folder,
)
from gpt2np.data.corpus import UnreadableFileError
from gpt2np.data.files import check_output_file, followed
from gpt2np.data.parquet import Columns, check_pyarrow, write_rows
from gpt2np.errors import GPT2NPError, InvalidArgumentError, check_argument

ROW_SUFFIXES = (".jsonl", ".parquet")
_PARTS = "files"  # folder of the log for a result in several files
_PROBLEMS = "skipped"  # file of the log with a line for each document that was skipped


class Results(NamedTuple):
    """What a job has made of some consecutive input."""

    contents: tuple[bytes, ...]  # what to append to each output file
    problems: Sequence[object] = ()  # an error message for each document or file that is skipped
    n_tokens: int = 0


class Step(NamedTuple):
    """The results of some consecutive input, and the position in the input after it.

    `files`, `batches`, `done` and `digest` are those of the next ResumePoint.
    """

    results: Results
    files: int
    batches: int
    done: int
    digest: str
    drops_file: bool = False  # earlier results of the current input file are invalid


@dataclass(frozen=True)
class Job:
    """A resumable job.

    Attributes:
        task: the settings and the input.
        names: names of the append-only output files.
        steps: a function that yields the steps after a resume point. At the end of the input, the
            function raises GPT2NPError if the input has changed meanwhile.
        finish: a function that writes the result from the log, and returns what to tell about it.
    """

    task: Task
    names: tuple[str, ...]
    steps: Callable[[ResumePoint], Iterator[Step]]
    finish: Callable[[AppendLog], Any]


class Outcome(NamedTuple):
    """Result of a job: what `finish` has returned, and counts of all runs and of this run."""

    result: Any
    n_skipped: int  # in all runs
    n_tokens: int  # in this run


def run_job(
    job: Job, out: Path, callbacks: JobCallbacks | None = None, *, force: bool = False
) -> Outcome:
    """Run a job, or resume it, and write the output file `out`.

    `force` discards an unfinished job with other settings or input.

    Raises:
        InvalidArgumentError: an unfinished job has other settings or input, and `force` is false.
        GPT2NPError: another job writes to `out`, or the input changes while the job runs.
        OSError: the files can't be written.
    """
    callbacks = callbacks or JobCallbacks()
    check_output_file(out)
    with AppendLog(partial_folder(out), (*job.names, _PROBLEMS)) as log:
        point = log.resume(job.task, callbacks, force=force)
        n_tokens = 0
        try:
            for step in job.steps(point):
                contents, problems, n_new = step.results
                if step.drops_file:
                    log.truncate(point.rollback_lengths)
                for problem in problems:
                    callbacks.on_skip(problem)
                lines = "".join(f"{problem}\n" for problem in problems)
                log.append(*contents, lines.encode(errors="backslashreplace"))
                n_tokens += n_new
                point = ResumePoint(
                    files=step.files,
                    batches=step.batches,
                    done=step.done,
                    lengths=log.lengths,
                    rollback_lengths=point.rollback_lengths if step.batches else log.lengths,
                    digest=step.digest,
                    checksums=log.checksums,
                )
                log.save(point)
                callbacks.on_progress(point.done, n_tokens)
        except InvalidArgumentError:  # of the input, which will be changed before the next run
            raise
        except BaseException:
            if point.done:
                log.save(point, force=True)
            raise
        log.save(point, force=True)
        log.close()
        with log.paths[-1].open("rb") as file:
            n_skipped = sum(1 for _ in file)
        result = job.finish(log)
        log.remove()
    return Outcome(result, n_skipped, n_tokens)


Item = TypeVar("Item", bound="tuple[Any, ...]")
"""A document, or a part of one; the first field is its text, or an array of its token ids."""


@dataclass(frozen=True)
class Batch(Generic[Item]):
    """Consecutive documents of a file, or parts of documents."""

    file: int  # index of the file
    items: list[Item]
    ends_file: bool  # whether this is the last batch of the file
    error: UnreadableFileError | None = None  # reason to skip the file, if any

    @property
    def nbytes(self) -> int:
        """Size of the batch's documents in bytes: texts in UTF-8, and arrays of token ids."""
        contents = (item[0] for item in self.items)
        return sum(len(c.encode()) if isinstance(c, str) else c.nbytes for c in contents)


def read_batches(
    files: Sequence[Path],
    read: Callable[[Path], Iterable[Item]],
    batch_size: int,
    *,
    skip_errors: bool = False,
    start: tuple[int, int] = (0, 0),
) -> Iterator[Batch[Item]]:
    """Yield the documents of `files` in batches, which are the same in every call.

    A batch ends with the document that reaches `batch_size` characters (or token ids). `start` is
    the first batch to yield: (file index, batch index within the file).

    With `skip_errors`, a file that can't be read yields a batch with an `error`. Otherwise, such a
    file raises UnreadableFileError.
    """
    first_file, first_batch = start
    for index in range(first_file, len(files)):
        try:
            batches = _file_batches(index, read(files[index]), batch_size)
            yield from islice(batches, first_batch if index == first_file else 0, None)
        except UnreadableFileError as error:
            if not skip_errors:
                raise
            yield Batch(index, [], True, error)


def _file_batches(file: int, items: Iterable[Item], batch_size: int) -> Iterator[Batch[Item]]:
    pending: list[Item] = []
    size = 0
    for item in items:
        pending.append(item)
        size += len(item[0])
        if size >= batch_size:
            yield Batch(file, pending, False)
            pending, size = [], 0
    yield Batch(file, pending, True)


RunBatches = Callable[[Sequence[Path], tuple[int, int]], Iterator[tuple[Batch[Any], Results]]]
"""`run(files, start)` yields each batch from `start` on (see `read_batches`) with its results."""


class CorpusInput:
    """The files of a corpus as the input of a job; files may be added at the end before it resumes.

    A file counts as changed if its size or modification time has changed.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files
        self._digests = input_digests(files)
        self._file_ends = [*accumulate(file.stat().st_size for file in files)]  # cumulative sizes

    def task(
        self,
        settings: Mapping[str, Any],
        fingerprints: Mapping[str, str],
        harmless: Mapping[str, Any] | None = None,
    ) -> Task:
        """Return the task of a job on these files; the arguments are those of `Task`."""
        settings = {"version of gpt2np": __version__, **settings}
        digests = dict(enumerate(self._digests))
        return Task(settings, fingerprints, lambda _: digests, self._describe, harmless or {})

    def steps(
        self,
        point: ResumePoint,
        run: RunBatches,
    ) -> Iterator[Step]:
        """Yield a step for each batch after the resume point `point`."""
        n_batches, done = point.batches, point.done
        for batch, results in run(self.files, (point.files, n_batches)):
            end = self._file_ends[batch.file]
            n_batches = 0 if batch.ends_file else n_batches + 1
            done = end if batch.ends_file else min(done + batch.nbytes, end)
            yield Step(
                results,
                batch.file + batch.ends_file,
                n_batches,
                done,
                digest=self._digests[batch.file + 1],
                drops_file=batch.error is not None,
            )
        self._check_unchanged()

    def _check_unchanged(self) -> None:
        """Raise GPT2NPError if a file has changed since the input was created."""
        now = input_digests(self.files)
        for file, before, after in zip(self.files, self._digests[1:], now[1:], strict=True):
            if before != after:
                message = "{0} has changed while it was read; run it again with {force.setting}"
                raise GPT2NPError(message, file, force=True)

    def _describe(self, start: int, stop: int) -> str:
        files = self.files[start:stop]
        if not files:
            return "the list of input files"
        if len(files) == 1:
            return f"{files[0]}"
        return f"a file from {files[0]} to {files[-1]}"


def finish_rows(
    log: AppendLog, out: Path, columns: Columns, max_rows_per_file: int | None = None
) -> int:
    """Write the rows in the log's first file, JSON Lines, to `out`; return the number of rows.

    If there are no rows, `out` is not written. A suffix .parquet selects the format Parquet with
    the given columns; any other, JSON Lines. `max_rows_per_file` is that of `write_result`.
    """
    with log.paths[0].open("rb") as lines:
        n_rows = sum(1 for _ in lines)
        lines.seek(0)
        is_parquet = out.suffix == ".parquet"
        if n_rows and (is_parquet or max_rows_per_file):
            rows = map(json.loads, lines) if is_parquet else lines
            write_result(rows, n_rows, columns, log, out, max_rows_per_file)
            return n_rows
    if n_rows:  # the file is closed now: Windows can't rename an open one
        log.paths[0].replace(followed(out))
    return n_rows


def write_result(
    rows: Iterable[Any],
    n_rows: int,
    columns: Columns,
    log: AppendLog,
    out: Path,
    max_rows_per_file: int | None,
) -> None:
    """Write `n_rows` rows to the file `out`, atomically: Parquet, or lines of JSON as bytes.

    With `max_rows_per_file`, `out` becomes a folder with files of so many rows, in order, and
    `_manifest.json`, which lists the files. Readers of Parquet folders skip names with "_".
    """
    if max_rows_per_file is None:
        _write_file(rows, log.scratch, columns, out.suffix)
        log.scratch.replace(followed(out))
        return
    folder = log.folder / _PARTS
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    folder.mkdir()
    remaining = iter(rows)
    files: list[dict[str, Any]] = []
    for start in range(0, n_rows, max_rows_per_file):
        path = folder / f"part-{len(files):05}{out.suffix}"
        _write_file(islice(remaining, max_rows_per_file), path, columns, out.suffix)
        n_written = min(max_rows_per_file, n_rows - start)
        files.append({"name": path.name, "rows": n_written, "bytes": path.stat().st_size})
    manifest = json.dumps({"rows": n_rows, "files": files}, indent=1)
    (folder / "_manifest.json").write_text(f"{manifest}\n", encoding="utf-8")
    folder.replace(out)


def _write_file(rows: Iterable[Any], path: Path, columns: Columns, suffix: str) -> None:
    if suffix == ".parquet":
        write_rows(rows, path, columns)
    else:
        with path.open("wb") as file:
            file.writelines(rows)


def check_rows_output(out: Path, *, overwrite: bool, inputs: Iterable[Path | None] = ()) -> None:
    """Raise a GPT2NPError if `out` can't be written, or is neither .jsonl nor .parquet."""
    if out.suffix not in ROW_SUFFIXES:
        check_argument(False, "out", f"{out}", f"a name that ends in {' or '.join(ROW_SUFFIXES)}")
    if out.suffix == ".parquet":
        check_pyarrow()
    check_output_file(out, overwrite=overwrite, inputs=inputs)


def check_max_rows(out: Path, max_rows_per_file: int | None) -> None:
    """Raise InvalidArgumentError if `max_rows_per_file` is invalid, or its folder `out` exists."""
    if max_rows_per_file is None:
        return
    check_argument(max_rows_per_file >= 1, "max_rows_per_file", max_rows_per_file, "at least 1")
    if out.exists() or out.is_symlink():
        raise InvalidArgumentError(f"{out} exists already; remove it, or choose another name")


def json_line(row: Mapping[str, Any]) -> bytes:
    """Return a row as a line of a .jsonl file."""
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"
