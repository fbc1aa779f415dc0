"""A resumable job: continue every prompt of a file, and write the results in order.

A resumed job writes the same file as an uninterrupted job, because each text depends only on the
model, the prompt, the options and the seed. Prompts may be appended to the file before the job
resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from gpt2np import __version__
from gpt2np.data.resumable import (
    Job,
    JobCallbacks,
    Outcome,
    Position,
    Results,
    read_settings,
    run_job,
)
from gpt2np.data.rows import assemble_rows, check_max_rows, json_line
from gpt2np.errors import ContextLengthError, GPT2NPError, InvalidArgumentError
from gpt2np.generation import Scheduler
from gpt2np.generation.complete import pick_best, start
from gpt2np.generation.sampling import new_seed
from gpt2np.generation.sequence import RunningSequence
from gpt2np.generation.streaming import Completion, TextStream
from gpt2np.language_model import LanguageModel
from gpt2np.prompts.prompt_file import PromptLine, line_digests, read_lines

COLUMNS = {
    "line": int,
    "id": object,
    "prompt": str,
    "prompt_ids": [int],
    "prompt_tokens": [str],
    "text": str,
    "ids": [int],
    "tokens": [str],
    "finish_reason": str,
    "seed": int,
    "model": str,
    "logprobs": object,
    "prompt_logprobs": object,
    "alternatives": object,
}
"""The columns of a .parquet file of results; see `gpt2np.data.parquet.Columns`."""

_ALIASES = {"stop_strings": "stop", "do_sample": "temperature"}
_MAX_FINISHED = 1000  # finished lines in memory that wait for an earlier line

ToJson = Callable[[Completion], dict[str, Any]]


def job_seed(out: Path, seed: int | None) -> int:
    """Return `seed`; for None, return the seed of an unfinished job for `out`, or a new seed."""
    if seed is not None:
        return seed
    stored = read_settings(out).get("seed")
    return stored if isinstance(stored, int) else new_seed()


def continue_file(
    lm: LanguageModel,
    prompts: Path,
    out: Path,
    to_json: ToJson,
    options: Mapping[str, Any],
    callbacks: JobCallbacks | None = None,
    fingerprint: str = "",
    force: bool = False,
    run: Callable[[int], Iterator[tuple[PromptLine, Results]]] | None = None,
    max_rows_per_file: int | None = None,
) -> Outcome:
    """Continue each prompt of a file; the result of the Outcome is the number of lines written.

    `prompts` is a prompt file, and `out` the output file, .jsonl or .parquet, which is written at
    the end unless no line is valid. `options` are keyword arguments of `LanguageModel.generate` and
    include a seed; options of a line take precedence. `fingerprint` is a digest of the model's
    files. `force` overwrites `out`, and discards an unfinished job with a different model, options
    or prompts. `run(after)` continues the lines after number `after` elsewhere; see
    `gpt2np.distributed.jobs`. `max_rows_per_file` is that of `write_output`.

    Raises:
        InvalidArgumentError: an option is invalid; or `force` is false, and `out` exists, or an
            unfinished job has a different model, options or prompts.
        CheckpointError: the model's logits are not finite.
        GPT2NPError: the prompt file changes while the job runs.
        OSError: the files can't be written.
    """
    check_max_rows(out, max_rows_per_file)
    runner = PromptRunner(lm, to_json, options, f"{prompts}")
    settings = {
        "version of gpt2np": __version__,
        "model": lm.name,
        "dtype": str(lm.model.dtype),
        "exact": lm.model.exact,
        "weights": lm.model.weight_dtype,
        "eos_token_ids": sorted(lm.eos_token_ids),
        **{f"default of {name}": value for name, value in asdict(lm.defaults).items()},
        **options,
    }
    digests = partial(line_digests, prompts)

    def run_here(after: int) -> Iterator[tuple[PromptLine, Results]]:
        return runner.run(read_lines(prompts, after))

    def steps(position: Position) -> Iterator[tuple[Position, Results]]:
        for line, results in (run or run_here)(position.done):
            position = Position(line.number, 0, line.number, line.digest)
            yield position, results
        n_lines = position.done
        if digests((n_lines, n_lines + 1)) != ({n_lines: position.digest} if n_lines else {}):
            raise GPT2NPError(
                f"{prompts} has changed while its prompts were continued; run the same command "
                "again to continue lines at the end that are new"
            )

    job = Job(
        settings,
        {"the model": fingerprint},
        digests,
        partial(_describe_lines, prompts),
        steps,
        lambda read, path: assemble_rows(read, path, COLUMNS, max_rows_per_file),
    )
    return run_job(job, out, callbacks, force=force)


def _describe_lines(prompts: Path, start: int, stop: int) -> str:
    if stop == start + 1:
        return f"line {stop} of {prompts}"
    return f"a line from {start + 1} to {stop} of {prompts}"


class PromptRunner:
    """Continues prompts in batches, and returns the results in the order of the prompts.

    A line can set its seed. Otherwise line i (from 1) has the seed `seed + (i - 1) × n`, where n is
    the number of continuations per prompt. The results of a prompt do not depend on the
    other prompts. Invalid lines are skipped and reported.
    """

    def __init__(
        self, lm: LanguageModel, to_json: ToJson, options: Mapping[str, Any], source: str
    ) -> None:
        """Check the options; `source` is the prompt file's name in error messages.

        Raises:
            InvalidArgumentError: an option is invalid.
        """
        given: Any = options
        self._n_drawn = lm.resolve_options(**given).n_drawn
        self._lm, self._to_json, self._options = lm, to_json, dict(options)
        self._source = source
        self._scheduler = Scheduler(lm.model)
        # id() of a running sequence → its prompt line, and all streams of that line.
        self._running: dict[int, tuple[PromptLine, list[TextStream]]] = {}
        self._finished: dict[int, Results] = {}  # by line number

    def run(self, lines: Iterable[PromptLine]) -> Iterator[tuple[PromptLine, Results]]:
        """Yield the results of the lines in order: of each line, or the joined results of several.

        The line in a pair is the last that the results are for.
        """
        remaining, started = iter(lines), dict[int, PromptLine]()  # by line number, in order
        has_more = True
        while has_more or self._scheduler.busy:
            while has_more and self._scheduler.free and len(self._finished) < _MAX_FINISHED:
                line = next(remaining, None)
                has_more = line is not None
                if line is not None:
                    started[line.number] = line
                    self._start_line(line)
            for sequence in self._scheduler.step() if self._scheduler.busy else ():
                self._end_sequence(sequence)
            yield from self._pop_finished(started)

    def _pop_finished(self, started: dict[int, PromptLine]) -> Iterator[tuple[PromptLine, Results]]:
        """Remove the finished lines up to the first unfinished line; yield their joined results."""
        problems: list[object] = []
        last, rows, n_tokens = None, b"", 0
        while started and (number := next(iter(started))) in self._finished:
            last, results = started.pop(number), self._finished.pop(number)
            rows += results.contents[0]
            problems += results.problems
            n_tokens += results.n_tokens
        if last is not None:
            yield last, Results((rows,), problems, n_tokens)

    def _start_line(self, line: PromptLine) -> None:
        if line.problem is not None or line.prompt is None:
            self._finish_line(line, b"", line.problem)
            return
        seed = self._options["seed"] + (line.number - 1) * self._n_drawn
        replaced = {_ALIASES.get(name, name) for name in line.options}
        kept = {name: value for name, value in self._options.items() if name not in replaced}
        options: Any = {**kept, "seed": seed, **line.options}
        try:
            started = start(self._lm.model, self._lm.request(line.prompt, **options))
        except (InvalidArgumentError, ContextLengthError) as error:
            self._finish_line(line, b"", str(error))
            return
        if isinstance(started, Completion):
            self._write_line(line, started)
            return
        for stream in started:
            self._running[id(stream.sequence)] = line, started
            self._scheduler.add(stream.sequence)

    def _end_sequence(self, sequence: RunningSequence) -> None:
        line, streams = self._running.pop(id(sequence))
        if any(stream.running for stream in streams):
            return
        problem = next((str(s.sequence.error) for s in streams if s.sequence.error), None)
        if problem is None:
            self._write_line(line, pick_best(streams))
        else:
            self._finish_line(line, b"", problem)

    def _write_line(self, line: PromptLine, completion: Completion) -> None:
        completions = [completion, *completion.alternatives]
        best, *alternatives = map(self._to_json, completions)
        line_id = {} if line.id is None else {"id": line.id}
        content = {"line": line.number, **line_id, **best}
        if alternatives:
            content["alternatives"] = alternatives
        n_tokens = sum(len(c.ids) for c in completions)
        self._finish_line(line, json_line(content), n_tokens=n_tokens)

    def _finish_line(
        self, line: PromptLine, row: bytes, problem: str | None = None, n_tokens: int = 0
    ) -> None:
        problems = [] if problem is None else [f"{self._source} line {line.number}: {problem}"]
        self._finished[line.number] = Results((row,), problems, n_tokens)
