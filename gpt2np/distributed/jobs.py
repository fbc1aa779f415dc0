"""The jobs of the command line on a cluster: the functions that replace their local loops.

The process that starts a job reads the files, resumes the job, and writes the results in order, as
without a cluster. Workers compute. All nodes must see the model under the same absolute path or
name; a worker that finds another model raises an error.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from gpt2np.data.files import file_name
from gpt2np.data.options import ScoreOptions, Special
from gpt2np.data.resumable import Results
from gpt2np.distributed.cluster import Cluster, map_on_cluster
from gpt2np.errors import GPT2NPError
from gpt2np.evaluation.corpus import BatchScorer, score_batch
from gpt2np.language_model import LanguageModel, language_model_fingerprint
from gpt2np.prompts import PromptLine, RunLines, continue_lines
from gpt2np.runtime.options import ModelOptions

_LINES = 32  # prompts that a worker continues together


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


def score_on_ray(
    source: ModelArguments, options: ScoreOptions, files: Sequence[Path], cluster: Cluster
) -> dict[str, Any]:
    """Return the arguments `map_items` and `make_scorer` of `score_corpus`."""
    names = [file_name(file) for file in files]
    make_scorer = partial(_make_scorer, source, options, names)
    return {"map_items": partial(map_on_cluster, cluster=cluster), "make_scorer": make_scorer}


def _make_scorer(
    source: ModelArguments, options: ScoreOptions, names: Sequence[str]
) -> BatchScorer:
    return partial(score_batch, source.load(), options, names)


def continue_on_ray(
    source: ModelArguments,
    prompts: Path,
    options: dict[str, Any],
    special: Special | None,
    cluster: Cluster,
) -> RunLines:
    """Return the argument `run` of `continue_file`."""
    make_runner = partial(_make_runner, source, options, file_name(prompts), special)

    def run(lines: Iterable[PromptLine]) -> Iterator[tuple[PromptLine, Results]]:
        remaining = iter(lines)
        chunks = iter(lambda: [*islice(remaining, _LINES)], [])
        for chunk, results in map_on_cluster(make_runner, chunks, cluster):
            yield from zip(chunk, results, strict=True)

    return run


def _make_runner(
    source: ModelArguments, options: dict[str, Any], name: str, special: Special | None
) -> Callable[[list[PromptLine]], list[Results]]:
    lm = source.load()
    return lambda lines: [
        results for _, results in continue_lines(lm, lines, options, name, special)
    ]
