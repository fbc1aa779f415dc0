"""A resumable job: continue every prompt of a file, and write the results as JSON Lines in order.

An unfinished job keeps its results and a journal in the folder OUT.partial (see
`gpt2np.data.append_log`). A resumed job writes the same file as an uninterrupted job, because
each text depends only on the model, the prompt, the options and the seed. Prompts may be appended
to the file before the job resumes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpt2np import __version__
from gpt2np.data.append_log import (
    AppendLog,
    JobCallbacks,
    ResumePoint,
    Task,
    partial_folder,
    read_settings,
)
from gpt2np.data.files import check_output_file, followed
from gpt2np.errors import ContextLengthError, GPT2NPError, InvalidArgumentError
from gpt2np.generation import Scheduler
from gpt2np.generation.sampling import new_seed
from gpt2np.generation.sequence import RunningSequence
from gpt2np.generation.streaming import Completion, TextStream, pick_best
from gpt2np.language_model import LanguageModel
from gpt2np.prompts.prompt_file import PromptLine, line_digests, read_lines

_ALIASES = {"stop_strings": "stop", "do_sample": "temperature"}
_MAX_FINISHED = 1000  # finished lines in memory that wait for an earlier line

ToJson = Callable[[Completion], dict[str, Any]]


@dataclass(frozen=True)
class Outcome:
    """Result of a job: line counts over all runs, and the token count of this run."""

    written: int
    skipped: int
    n_tokens: int


def job_seed(out: Path, seed: int | None) -> int:
    """Return `seed`; for None, return the seed of an unfinished job for `out`, or a new seed."""
    if seed is not None:
        return seed
    stored = read_settings(partial_folder(out)).get("seed")
    return stored if isinstance(stored, int) else new_seed()


class PromptJob:
    """A job that continues every prompt of a file.

    If `options` make n continuations per prompt, line i (from 1) has the seed
    `seed + (i - 1) × n`, unless the line sets a seed. The results of a prompt do not depend on the
    other prompts. Invalid lines are skipped and reported.
    """

    def __init__(
        self,
        lm: LanguageModel,
        prompts: Path,
        out: Path,
        to_json: ToJson,
        options: Mapping[str, Any],
        callbacks: JobCallbacks | None = None,
        fingerprint: str = "",
        force: bool = False,
    ) -> None:
        """Prepare a job; `run` starts it.

        `prompts` is a prompt file, and `out` the output file, which `run` replaces at the end.
        `options` are keyword arguments of `LanguageModel.generate` and include a seed; options of a
        line take precedence. `fingerprint` is a digest of the model's files. `force` allows `run`
        to discard an unfinished job with a different model, options or prompts.

        Raises:
            InvalidArgumentError: an option is invalid.
        """
        given: Any = options
        self._n_drawn = lm.resolve_options(**given).n_drawn
        self._lm, self._prompts, self._out = lm, prompts, out
        self._to_json, self._options = to_json, dict(options)
        self._callbacks = callbacks or JobCallbacks()
        settings = {
            "version of gpt2np": __version__,
            "model": lm.name,
            "dtype": str(lm.model.dtype),
            "eos_token_ids": sorted(lm.eos_token_ids),
            **{f"default of {name}": value for name, value in asdict(lm.defaults).items()},
            **options,
        }
        digests = partial(line_digests, prompts)
        self._task = Task(settings, {"the model": fingerprint}, digests, self._describe_lines)
        self._force = force
        self._scheduler = Scheduler(lm.model)
        # id() of a running sequence → its prompt line, and all streams of that line.
        self._running: dict[int, tuple[PromptLine, list[TextStream]]] = {}
        # Line number of a finished line → output, error message, and digest of the input.
        self._finished: dict[int, tuple[bytes, bytes, str]] = {}
        self._n_tokens = 0

    def run(self) -> Outcome:
        """Continue all prompts that no earlier run has finished, and write the output file.

        If no line is valid, the output file is not written or replaced.

        Raises:
            InvalidArgumentError: an unfinished job has a different model, options or prompts, and
                `force` is false.
            CheckpointError: the model's logits are not finite.
            GPT2NPError: the prompt file changes while the job runs.
            OSError: the files can't be written.
        """
        check_output_file(self._out)
        with AppendLog(partial_folder(self._out), ("lines", "skipped")) as log:
            self._log = log
            self._resume_point = log.resume(self._task, self._callbacks, force=self._force)
            try:
                self._generate()
            finally:
                if self._resume_point.done:
                    log.save(self._resume_point, force=True)
            log.close()
            n_lines, digest = self._resume_point.done, self._resume_point.digest
            digests = line_digests(self._prompts, (n_lines, n_lines + 1))
            if digests != ({n_lines: digest} if n_lines else {}):
                raise GPT2NPError(
                    f"{self._prompts} has changed while its prompts were continued; run the same "
                    "command again to continue lines at the end that are new"
                )
            with log.paths[0].open("rb") as lines, log.paths[1].open("rb") as messages:
                written, skipped = (sum(1 for _ in file) for file in (lines, messages))
            if written:
                log.paths[0].replace(followed(self._out))
            log.remove()
        return Outcome(written, skipped, self._n_tokens)

    def _describe_lines(self, start: int, stop: int) -> str:
        if stop == start + 1:
            return f"line {stop} of {self._prompts}"
        return f"a line from {start + 1} to {stop} of {self._prompts}"

    def _generate(self) -> None:
        lines = read_lines(self._prompts, after=self._resume_point.done)
        has_more = True
        while has_more or self._scheduler.busy:
            while has_more and self._scheduler.free and len(self._finished) < _MAX_FINISHED:
                line = next(lines, None)
                has_more = line is not None
                if line is not None:
                    self._start_line(line)
                    self._append_finished()
            for sequence in self._scheduler.step() if self._scheduler.busy else ():
                self._end_sequence(sequence)
            self._append_finished()

    def _start_line(self, line: PromptLine) -> None:
        if line.problem is not None or line.prompt is None:
            self._finish_line(line, b"", line.problem)
            return
        seed = self._options["seed"] + (line.number - 1) * self._n_drawn
        replaced = {_ALIASES.get(name, name) for name in line.options}
        kept = {name: value for name, value in self._options.items() if name not in replaced}
        options: Any = {**kept, "seed": seed, **line.options}
        try:
            if self._lm.resolve_options(**options).num_beams > 1:
                self._write_line(line, self._lm.generate(line.prompt, **options))
                return
            streams = self._lm.streams(line.prompt, **options)
        except (InvalidArgumentError, ContextLengthError) as error:
            self._finish_line(line, b"", str(error))
            return
        for stream in streams:
            self._running[id(stream.sequence)] = line, streams
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
        self._n_tokens += sum(len(c.ids) for c in completions)
        best, *alternatives = map(self._to_json, completions)
        line_id = {} if line.id is None else {"id": line.id}
        content = {"line": line.number, **line_id, **best}
        if alternatives:
            content["alternatives"] = alternatives
        self._finish_line(line, json.dumps(content, ensure_ascii=False).encode() + b"\n")

    def _finish_line(self, line: PromptLine, output: bytes, problem: str | None = None) -> None:
        message = b""
        if problem is not None:
            text = f"{self._prompts} line {line.number}: {problem}"
            self._callbacks.on_skip(text)
            message = f"{text}\n".encode(errors="backslashreplace")
        self._finished[line.number] = output, message, line.digest

    def _append_finished(self) -> None:
        """Append finished lines to the log, in order, up to the first unfinished line."""
        previous = self._resume_point.done
        while (number := self._resume_point.done + 1) in self._finished:
            output, message, digest = self._finished.pop(number)
            self._log.append(output, message)
            lengths, checksums = self._log.lengths, self._log.checksums
            self._resume_point = ResumePoint(number, 0, number, lengths, lengths, digest, checksums)
        if self._resume_point.done > previous:
            self._callbacks.on_progress(self._resume_point.done, self._n_tokens)
            self._log.save(self._resume_point)
