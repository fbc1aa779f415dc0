"""A resumable job: continue every prompt of a file, and write the results in order.

A resumed job writes the same file as an uninterrupted job, because each text depends only on the
model, the prompt, the options and the seed. Prompts may be appended to the file before the job
resumes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
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
    Step,
    read_settings,
    run_job,
)
from gpt2np.data.rows import add_columns, assemble_rows, json_line
from gpt2np.errors import ContextLengthError, InvalidArgumentError
from gpt2np.generation.complete import Result, pick_best, run_groups, start
from gpt2np.generation.completion import Completion
from gpt2np.generation.options import EFFECTS, GenerationOptions
from gpt2np.generation.sampling import new_seed
from gpt2np.generation.sequence import RunningSequence
from gpt2np.language_model import LanguageModel, model_settings
from gpt2np.prompts.prompt_file import PromptLine, line_digests, read_prompts
from gpt2np.prompts.rows import COLUMNS, completion_as_json
from gpt2np.tokenizer import Tokenizer

RunLines = Callable[[Iterable[PromptLine]], Iterator[tuple[PromptLine, Results]]]

_ALIASES = {"stop_strings": "stop", "do_sample": "temperature"}


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
    run: RunLines | None = None,
) -> Outcome:
    """Continue each prompt of a file; the result of the Outcome is the number of rows.

    `prompts` is a prompt file, and `out` the output file, .jsonl, .csv or .parquet, which is
    written at the end unless no line is valid. `options` are keyword arguments of
    `LanguageModel.generate` and include a seed; options of a line take precedence. `field` has the
    prompt of a row. A call resumes an interrupted call; see `run_job`. `run` continues the lines
    elsewhere; see `gpt2np.distributed.jobs`.

    Raises the errors of `run_job`, and:
        InvalidArgumentError: an option is invalid.
        CheckpointError: the model's logits are not finite.
    """
    given: Any = options
    lm.resolve_options(**given)  # raises an error before a file is written
    run = run or partial(continue_lines, lm, options=options, source=f"{prompts}")

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
            **options,
        },
        partial(line_digests, prompts, field),
        lambda index: f"line {index + 1} of {prompts}",
        steps,
        _assemble,
    )
    return run_job(job, out, callbacks, force=force)


def _assemble(streams: Sequence[Path], out: Path) -> int:
    assemble_rows(streams, out, COLUMNS)
    with streams[0].open("rb") as lines:
        return sum(1 for _ in lines)


def continue_lines(
    lm: LanguageModel, lines: Iterable[PromptLine], options: Mapping[str, Any], source: str
) -> Iterator[tuple[PromptLine, Results]]:
    """Continue prompts in batches; yield each line with its results, in order.

    A line can set its seed. Otherwise line i (from 1) has the seed `seed + (i - 1) × n`, where n is
    the number of continuations per prompt. The results of a prompt do not depend on the other
    prompts. An invalid line is skipped and reported; `source` is the prompt file's name there.
    """
    given: Any = options
    n_drawn = lm.resolve_options(**given).n_drawn
    # As defaults, options without an effect on a line, such as top_k on a greedy one, are no error.
    shared = {name: value for name, value in options.items() if name in EFFECTS}
    defaults = replace(lm.defaults, **shared)
    options = {name: value for name, value in options.items() if name not in shared}
    started = deque[tuple[PromptLine, Result | str | None]]()

    def groups() -> Iterator[list[RunningSequence]]:
        for line in lines:
            result = _start(lm, line, defaults, options, n_drawn)
            started.append((line, result))
            yield result if isinstance(result, list) else []

    for _ in run_groups(lm.model, groups()):
        line, result = started.popleft()
        if isinstance(result, list):
            error = next((s.error for s in result if s.error), None)
            result = pick_best(result) if error is None else str(error)
        if isinstance(result, Completion):
            yield line, _row(line, result, lm.tokenizer)
        else:
            problems = [f"{source} line {line.number}: {result}"] if result else []
            yield line, Results((b"",), problems)


def _start(
    lm: LanguageModel,
    line: PromptLine,
    defaults: GenerationOptions,
    options: Mapping[str, Any],
    n_drawn: int,
) -> Result | str | None:
    """Return a line's sequences or completion, its problem, or None for a blank line."""
    if line.problem is not None or line.prompt is None:
        return line.problem
    replaced = {_ALIASES.get(name, name) for name in line.options}
    kept = {name: value for name, value in options.items() if name not in replaced}
    seed = options["seed"] + (line.number - 1) * n_drawn
    changes: Any = {**kept, "seed": seed, **line.options}
    try:
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
