"""Prompt files, and the resumable job that continues every prompt of a file.

A file has a text per line (.txt), a JSON value per line (.jsonl), or rows of a table. Fields of a
JSON object that are named like options are options of its prompt, unless they are null.

A resumed job writes the same file as an uninterrupted job, because each text depends only on the
model, the prompt, the options and the seed. Prompts may be appended to the file before the job
resumes.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from gpt2np import __version__
from gpt2np.data.corpus import Record, kind_of, opened, read_records
from gpt2np.data.files import file_name
from gpt2np.data.options import Special
from gpt2np.data.parquet import row_count
from gpt2np.data.resumable import (
    Job,
    JobCallbacks,
    Outcome,
    Position,
    Results,
    Step,
    read_settings,
    run_job,
)
from gpt2np.data.rows import add_columns, assemble_rows, json_line
from gpt2np.data.text import is_unicode_text
from gpt2np.errors import ContextLengthError, InvalidArgumentError, did_you_mean, short_repr, warn
from gpt2np.generation.complete import join_continuations, run_groups, start
from gpt2np.generation.completion import COLUMNS, Completion, completion_as_json
from gpt2np.generation.options import NEUTRAL, GenerationOptions, Options
from gpt2np.generation.sampling import new_seed
from gpt2np.generation.sequence import RunningSequence
from gpt2np.language_model import LanguageModel, model_settings
from gpt2np.tokenizer import Tokenizer
from gpt2np.tokenizer.normalizer import allowed_special, check_special


@dataclass(frozen=True)
class PromptLine:
    """A line of a prompt file."""

    number: int  # line number from 1, including blank lines
    prompt: str | list[int] | None = None  # None if the line is invalid
    # Keyword arguments of `LanguageModel.generate`.
    options: Mapping[str, Any] = field(default_factory=dict)
    id: Any = None  # the value of "id"
    columns: Mapping[str, Any] = field(default_factory=dict)  # other values, for the result
    problem: str | None = None  # error message if the line is invalid
    digest: str = field(default="", compare=False)


def line_count(path: Path, name: str = "prompt") -> int:
    """Return about how many lines or rows a prompt file has, without parsing them.

    Blank lines, and line ends within a cell of a table, count as lines.

    Raises:
        InvalidArgumentError: the file has no prompt or no column `name`, or can't be read.
    """
    if next(read_records(path, name, None, all_columns=False), None) is None:
        raise InvalidArgumentError(f"{file_name(path)} has no prompt")
    with opened(path) as stream:
        if kind_of(path) == ".parquet":
            return row_count(stream, path)
        return sum(block.count(b"\n") for block in iter(partial(stream.read, 1 << 20), b"")) or 1


def read_prompts(path: Path, name: str = "prompt", after: int = 0) -> Iterator[PromptLine]:
    """Yield the lines that follow line number `after`; `name` is the field of a row's prompt.

    Blank lines are left out.
    """
    has_options = kind_of(path).removesuffix(".gz") == ".jsonl"
    for record in read_records(path, name, None):
        if record.number > after:
            yield replace(_parse(record, name, has_options), digest=_digest(record))


def line_digests(path: Path, name: str, n: int) -> list[str]:
    """Return a digest of each of the first n lines; a blank line has that of the next line."""
    digests: list[str] = []
    for record in read_records(path, name, None):
        if len(digests) >= n:
            break
        digests += [_digest(record)] * (record.number - len(digests))
    return digests[:n]


def _digest(record: Record) -> str:
    return hashlib.sha256(repr(record[1:]).encode(errors="backslashreplace")).hexdigest()[:16]


def _parse(record: Record, name: str, has_options: bool) -> PromptLine:
    number, value, problem = record
    is_row = isinstance(value, dict) and name in value
    if problem is None and not (is_row or isinstance(value, str)):
        problem = f"expected a string or an object with a {json.dumps(name)}"
    elif problem is None and not is_unicode_text(
        json.dumps(value, ensure_ascii=False, default=str)
    ):
        problem = "a text has half of a surrogate pair"
    if problem is not None:
        return PromptLine(number, problem=problem)
    return _parse_row(number, value, name, has_options) if is_row else PromptLine(number, value)


def _parse_row(number: int, row: Mapping[str, Any], name: str, has_options: bool) -> PromptLine:
    prompt = row[name]
    if not isinstance(prompt, (str, list)):
        problem = f"the prompt is {short_repr(prompt)}; expected a string or a list of token ids"
        return PromptLine(number, problem=problem)
    options, columns = {}, {name: prompt} if name != "prompt" else {}
    for key, value in row.items():
        if key in (name, "id"):
            continue
        if has_options and key in Options.__annotations__:
            if value is not None:
                options[key] = value
        elif has_options and (hint := did_you_mean(key, Options.__annotations__)):
            return PromptLine(number, problem=f"unknown option {short_repr(key)}{hint}")
        else:
            columns[key] = value
    return PromptLine(number, prompt, options, row.get("id"), columns)


RunLines = Callable[[Iterable[PromptLine]], Iterator[tuple[PromptLine, Results]]]


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
    options: Mapping[str, Any],
    callbacks: JobCallbacks | None = None,
    force: bool = False,
    field: str = "prompt",
    special: Special | None = None,
    run: RunLines | None = None,
) -> Outcome:
    """Continue each prompt of a file; the result of the Outcome is the number of rows.

    `prompts` is a prompt file, and `out` the output file, .jsonl, .csv or .parquet, which is
    written at the end unless no line is valid. `options` are keyword arguments of
    `LanguageModel.generate` and include a seed; options of a line take precedence. `field` has the
    prompt of a row. `special` decides on special tokens of a prompt: with "error", a line that has
    one is skipped. A call resumes an interrupted call; see `run_job`. `run` continues the lines
    elsewhere; see `gpt2np.distributed.jobs`.

    Raises the errors of `run_job`, and:
        InvalidArgumentError: an option is invalid.
        CheckpointError: the model's logits are not finite.
    """
    given: Any = options
    lm.resolve_options(**given)  # raises an error before a file is written
    name, first = file_name(prompts), next(read_prompts(prompts, field), PromptLine(0))
    if names := [
        name for name in first.columns if name in Options.__annotations__.keys() - {field}
    ]:
        warn(
            f"{name}: the values of {', '.join(names)} are copied to the results, and are not "
            "used as options; only a .jsonl file can set options for a prompt"
        )
    run = run or partial(continue_lines, lm, options=options, source=name, special=special)

    def steps(position: Position) -> Iterator[Step]:
        for line, results in run(read_prompts(prompts, field, position.done)):
            yield Step(Position(line.number, 0, line.number), line.digest, results)

    job = Job(
        {
            "version of gpt2np": __version__,
            **model_settings(lm),
            "eos_token_ids": sorted(lm.eos_token_ids),
            **{f"default of {name}": value for name, value in asdict(lm.defaults).items()},
            "field": field,
            "special": special,
            **options,
        },
        partial(line_digests, prompts, field),
        lambda index: f"line {index + 1} of {name}",
        steps,
        _assemble,
    )
    return run_job(job, out, callbacks, force=force)


def _assemble(streams: Sequence[Path], out: Path) -> int:
    assemble_rows(streams, out, COLUMNS)
    with streams[0].open("rb") as lines:
        return sum(1 for _ in lines)


def continue_lines(
    lm: LanguageModel,
    lines: Iterable[PromptLine],
    options: Mapping[str, Any],
    source: str,
    special: Special | None = None,
) -> Iterator[tuple[PromptLine, Results]]:
    """Continue prompts in batches; yield each line with its results, in order.

    A line can set its seed. Otherwise line i (from 1) has the seed `seed + (i - 1) × n`, where n is
    the number of continuations per prompt. The results of a prompt do not depend on the other
    prompts. An invalid line is skipped and reported; `source` is the prompt file's name there.
    """
    given: Any = options
    n_texts = lm.resolve_options(**given).num_return_sequences
    # As defaults, options without an effect on a line, such as top_k on a greedy one, are no error.
    shared = {name: value for name, value in options.items() if name in NEUTRAL}
    defaults = replace(lm.defaults, **shared)
    options = {name: value for name, value in options.items() if name not in shared}
    started = deque[tuple[PromptLine, list[RunningSequence] | str | None]]()

    def groups() -> Iterator[list[RunningSequence]]:
        for line in lines:
            result = _start(lm, line, defaults, options, n_texts, special)
            started.append((line, result))
            yield result if isinstance(result, list) else []

    for _ in run_groups(lm.model, groups()):
        line, result = started.popleft()
        if isinstance(result, list):
            error = next((s.error for s in result if s.error), None)
            result = str(error) if error else result
        if isinstance(result, list):
            yield line, _row(line, join_continuations(result), lm.tokenizer)
        else:
            if result and not f"{result}".startswith(f"{source}, "):
                result = f"{source}, line {line.number}: {result}"
            problems = [result] if result else []
            yield line, Results((b"",), problems)


def _start(
    lm: LanguageModel,
    line: PromptLine,
    defaults: GenerationOptions,
    options: Mapping[str, Any],
    n_texts: int,
    special: Special | None,
) -> list[RunningSequence] | str | None:
    """Return a line's sequences, its problem, or None for a blank line."""
    if line.problem is not None or line.prompt is None:
        return line.problem
    seed = options["seed"] + (line.number - 1) * n_texts
    changes: Any = {**options, "seed": seed, **line.options}
    changes["allowed_special"] = allowed_special(special)
    try:
        if isinstance(line.prompt, str):
            check_special(line.prompt, lm.tokenizer.special_tokens, special)
        return start(lm.model, lm.request(line.prompt, defaults, **changes))
    except (InvalidArgumentError, ContextLengthError) as error:
        return str(error)


def _row(line: PromptLine, completion: Completion, tokenizer: Tokenizer) -> Results:
    completions = [completion, *completion.alternatives]
    best, *alternatives = (completion_as_json(c, tokenizer) for c in completions)
    line_id = {} if line.id is None else {"id": line.id}
    content = {"line": line.number, **line_id, **best}
    if alternatives:
        content["alternatives"] = alternatives
    row = add_columns(line.columns, content, COLUMNS)
    return Results((json_line(row),), n_tokens=sum(len(c.ids) for c in completions))
