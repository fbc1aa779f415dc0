"""The jobs of the command line on a cluster: the functions that replace their local loops.

The process that starts a job reads resume points, and appends the results in order, as without a
cluster. Workers read the files and compute. All nodes must see the files and the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from gpt2np.data.pipeline import Batch, Results, RunBatches, read_batches
from gpt2np.distributed.workers import Cluster, map_in_order
from gpt2np.evaluation.corpus import ScoreOptions, read_corpus, score_batch
from gpt2np.language_model import LanguageModel
from gpt2np.prompts.job import PromptRunner, ToJson
from gpt2np.prompts.prompt_file import PromptLine, read_lines
from gpt2np.tokenizer import Tokenizer, batches

_LINES = 32  # prompts that a worker continues together


@dataclass(frozen=True)
class ModelSource:
    """The arguments with which each worker loads the model."""

    model: str | None
    dtype: str = "float32"
    tokenizer: str | None = None
    weights: Literal["int8"] | None = None

    def load(self) -> LanguageModel:
        """Load the model, for one process."""
        return LanguageModel.load(
            self.model, self.dtype, tokenizer=self.tokenizer, weights=self.weights
        )


def score_on_ray(source: ModelSource, options: ScoreOptions, cluster: Cluster) -> RunBatches:
    """Return the argument `run` of `score_corpus`."""

    def run(files: Sequence[Path], start: tuple[int, int]) -> Iterator[tuple[Batch[Any], Results]]:
        readers = [
            partial(read_corpus, files[: file + 1], options, begin)
            for file, begin in _starts(files, start)
        ]
        return map_in_order(readers, partial(_make_scorer, source, options, files), cluster)

    return run


def encode_on_ray(
    tokenizer: Tokenizer, field: str, skip_errors: bool, cluster: Cluster
) -> RunBatches:
    """Return the argument `run` of `encode_dataset`."""
    read = partial(batches.read_parts_or_arrays, tokenizer=tokenizer, field=field)

    def run(files: Sequence[Path], start: tuple[int, int]) -> Iterator[tuple[Batch[Any], Results]]:
        readers = [
            partial(
                read_batches,
                files[: file + 1],
                read,
                batches.BATCH_SIZE,
                skip_errors=skip_errors,
                start=begin,
            )
            for file, begin in _starts(files, start)
        ]
        return map_in_order(readers, partial(_make_encoder, tokenizer), cluster)

    return run


def continue_on_ray(
    source: ModelSource,
    prompts: Path,
    to_json: Callable[[LanguageModel], ToJson],
    options: dict[str, Any],
    cluster: Cluster,
) -> Callable[[int], Iterator[tuple[PromptLine, Results]]]:
    """Return the argument `run` of `continue_file`; `to_json` makes its function of the model."""

    def run(after: int) -> Iterator[tuple[PromptLine, Results]]:
        readers = [partial(_read_prompts, prompts, after)]
        make = partial(_make_runner, source, to_json, options, f"{prompts}")
        for lines, results in map_in_order(readers, make, cluster):
            yield lines[-1], results

    return run


def _starts(files: Sequence[Path], start: tuple[int, int]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield each file from `start` on: its index, and the first batch to read."""
    first_file, first_batch = start
    for file in range(first_file, len(files)):
        yield file, (file, first_batch if file == first_file else 0)


def _make_scorer(
    source: ModelSource, options: ScoreOptions, files: Sequence[Path]
) -> Callable[[Batch[Any]], Results]:
    lm = source.load()
    return lambda batch: score_batch(lm, batch, options, files[batch.file])


def _make_encoder(tokenizer: Tokenizer) -> Callable[[Batch[Any]], Results]:
    return partial(batches.encode_batch, tokenizer=tokenizer)


def _read_prompts(prompts: Path, after: int) -> Iterator[list[PromptLine]]:
    lines = read_lines(prompts, after)
    while chunk := [*islice(lines, _LINES)]:
        yield chunk


def _make_runner(
    source: ModelSource,
    to_json: Callable[[LanguageModel], ToJson],
    options: dict[str, Any],
    name: str,
) -> Callable[[list[PromptLine]], Results]:
    lm = source.load()
    runner = PromptRunner(lm, to_json(lm), options, name)

    def run(lines: list[PromptLine]) -> Results:
        results = [made for _, made in runner.run(lines)]
        rows = b"".join(made.contents[0] for made in results)
        problems = [problem for made in results for problem in made.problems]
        return Results((rows,), problems, sum(made.n_tokens for made in results))

    return run
