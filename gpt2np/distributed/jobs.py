"""The jobs of the command line on a cluster: the functions that replace their local loops.

The process that starts a job resumes it, and writes the results in order, as without a cluster.
Workers read the files and compute. All nodes must see the files and the model under the same
absolute paths; a worker that finds another file or model raises an error.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from gpt2np.data.corpus_job import DocumentBatch, RunBatches, read_batches
from gpt2np.data.options import DatasetOptions
from gpt2np.data.resumable import Results
from gpt2np.distributed.cluster import Cluster
from gpt2np.distributed.workers import map_on_cluster
from gpt2np.errors import GPT2NPError
from gpt2np.evaluation.corpus import read_document_batches, score_batch
from gpt2np.evaluation.options import ScoreOptions
from gpt2np.language_model import LanguageModel
from gpt2np.model.fingerprint import model_fingerprint
from gpt2np.prompts.job import continue_lines
from gpt2np.prompts.prompt_file import PromptLine, read_lines
from gpt2np.runtime.options import ModelOptions
from gpt2np.tokenizer import Tokenizer, batches

Item = TypeVar("Item")

_LINES = 32  # prompts that a worker continues together
_SAMPLE_BYTES = 1 << 16  # at both ends of a file


@dataclass(frozen=True)
class ModelArguments:
    """What each worker needs to load the model; existing paths become absolute."""

    options: ModelOptions
    fingerprint: str | None = None  # that of the loaded model; see `language_model_fingerprint`

    def __post_init__(self) -> None:
        for name in ("model", "tokenizer"):
            value = getattr(self.options, name)
            if value is not None and Path(value).exists():
                changes: Any = {name: os.fspath(Path(value).absolute())}
                object.__setattr__(self, "options", replace(self.options, **changes))

    def load(self) -> LanguageModel:
        """Load the model, for one process, and check its fingerprint."""
        lm = LanguageModel.load(**vars(self.options) | {"processes": 1})
        if self.fingerprint not in (None, language_model_fingerprint(lm)):
            raise GPT2NPError(
                f"the worker on {socket.gethostname()} loads another model, {lm.name} in "
                f"{lm.folder}; every node needs the same model"
            )
        return lm


def language_model_fingerprint(lm: LanguageModel) -> str:
    """Return a digest of a model and its vocabulary."""
    return model_fingerprint(lm.model) + lm.tokenizer.fingerprint


def score_on_ray(source: ModelArguments, options: ScoreOptions, cluster: Cluster) -> RunBatches:
    """Return the argument `run` of `score_corpus`."""
    read = partial(read_document_batches, options=options)
    return partial(_run_batches, read, partial(_make_scorer, source, options), cluster)


def encode_on_ray(tokenizer: Tokenizer, options: DatasetOptions, cluster: Cluster) -> RunBatches:
    """Return the argument `run` of `encode_dataset`."""
    read_file = partial(batches.read_parts_or_arrays, tokenizer=tokenizer, field=options.field)
    size, skip_errors = batches.BATCH_SIZE, options.skip_errors
    read = partial(read_batches, read=read_file, batch_size=size, skip_errors=skip_errors)
    return partial(_run_batches, read, partial(_make_encoder, tokenizer), cluster)


def _run_batches(
    read: Callable[..., Iterator[DocumentBatch[Any]]],
    make_function: Callable[[Sequence[Path]], Callable[[DocumentBatch[Any]], Results]],
    cluster: Cluster,
    files: Sequence[Path],
    start: tuple[int, int],
) -> Iterator[tuple[DocumentBatch[Any], Results]]:
    """Yield each batch with its results; `read(files, start=…)` is `read_batches`."""
    paths = [file.absolute() for file in files]
    first_file, first_batch = start
    readers = []
    for i in range(first_file, len(files)):
        begin = (i, first_batch if i == first_file else 0)
        read_file = partial(read, paths[: i + 1], start=begin)
        readers.append(partial(_read_checked, paths[i], _sample(paths[i]), read_file))
    return map_on_cluster(readers, partial(make_function, files), cluster)


def continue_on_ray(
    source: ModelArguments, prompts: Path, options: dict[str, Any], cluster: Cluster
) -> Callable[[int], Iterator[tuple[PromptLine, Results]]]:
    """Return the argument `run` of `continue_file`."""

    def run(after: int) -> Iterator[tuple[PromptLine, Results]]:
        file = prompts.absolute()
        readers = [partial(_read_checked, file, _sample(file), partial(_read_prompts, file, after))]
        make = partial(_make_runner, source, options, f"{prompts}")
        for lines, results in map_on_cluster(readers, make, cluster):
            yield lines[-1], results

    return run


def _read_checked(file: Path, sample: str, read: Callable[[], Iterator[Item]]) -> Iterator[Item]:
    """Yield what `read` yields, if `file` is the file that the command has seen."""
    if not file.is_file() or _sample(file) != sample:
        raise GPT2NPError(
            f"{file} on {socket.gethostname()} is missing, or differs from the command's file; "
            "every node needs the same files under the same paths"
        )
    yield from read()


def _sample(file: Path) -> str:
    """Return a digest of a file's size and both ends; that of a copy is equal."""
    size = file.stat().st_size
    digest = hashlib.sha256(f"{size}".encode())
    with file.open("rb") as stream:
        digest.update(stream.read(_SAMPLE_BYTES))
        stream.seek(max(0, size - _SAMPLE_BYTES))
        digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _make_scorer(
    source: ModelArguments, options: ScoreOptions, files: Sequence[Path]
) -> Callable[[DocumentBatch[Any]], Results]:
    lm = source.load()
    return lambda batch: score_batch(lm, batch, options, files[batch.file])


def _make_encoder(
    tokenizer: Tokenizer, files: Sequence[Path]
) -> Callable[[DocumentBatch[Any]], Results]:
    return partial(batches.encode_batch, tokenizer=tokenizer)


def _read_prompts(prompts: Path, after: int) -> Iterator[list[PromptLine]]:
    lines = read_lines(prompts, after)
    while chunk := [*islice(lines, _LINES)]:
        yield chunk


def _make_runner(
    source: ModelArguments, options: dict[str, Any], name: str
) -> Callable[[list[PromptLine]], Results]:
    lm = source.load()

    def run(lines: list[PromptLine]) -> Results:
        results = [made for _, made in continue_lines(lm, lines, options, name)]
        rows = b"".join(made.contents[0] for made in results)
        problems = [problem for made in results for problem in made.problems]
        return Results((rows,), problems, sum(made.n_tokens for made in results))

    return run
