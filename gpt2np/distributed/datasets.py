"""Datasets of Ray with further columns: scores, token ids, continuations."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from gpt2np.distributed.cluster import Cluster
from gpt2np.distributed.jobs import ModelArguments
from gpt2np.evaluation.corpus import check_score_options, score_documents
from gpt2np.evaluation.options import ScoreOptions
from gpt2np.prompts.prompt_file import PromptLine
from gpt2np.runtime.options import ModelOptions

if TYPE_CHECKING:
    from ray.data import Dataset

_ROWS = 64  # documents that a worker handles together
_CPUS_FOR_FILES = 1  # without a CPU for tasks that read and write, a dataset would wait forever

Rows = list[dict[str, Any]]


def score(
    ds: Dataset,
    model: str | None = None,
    *,
    cluster: Cluster | None = None,
    field: str = "text",
    context: int | None = None,
    stride: int | None = None,
    from_end_of_text: bool = True,
    tokens: bool = False,
) -> Dataset:
    """Add the measures of `gpt2np score` to each row of a dataset with a text in column `field`.

    `context`, `stride`, `from_end_of_text` and `tokens` are fields of `ScoreOptions`. `model` is a
    name or folder that every node can load.
    """
    options = ScoreOptions(field, context, stride, from_end_of_text, tokens)
    make = partial(_make_scorer, ModelArguments(ModelOptions(model)), options)
    return _add_columns(ds, make, cluster)


def encode(
    ds: Dataset, model: str | None = None, *, cluster: Cluster | None = None, field: str = "text"
) -> Dataset:
    """Add the column "ids", the token ids of the text in column `field`, to each row."""
    make = partial(_make_encoder, ModelArguments(ModelOptions(model)), field)
    return _add_columns(ds, make, cluster)


def generate(
    ds: Dataset,
    model: str | None = None,
    *,
    seed: int,
    index: str = "index",
    cluster: Cluster | None = None,
    field: str = "prompt",
    **options: Any,
) -> Dataset:
    """Add the columns "completion" and "completion_ids" to each row with a prompt in `field`.

    The seed of a row is `seed` + the row's number in column `index`, so that the texts do not
    depend on how rows are distributed. `options` are keyword arguments of `LanguageModel.generate`.
    """
    source = ModelArguments(ModelOptions(model))
    make = partial(_make_generator, source, {**options, "seed": seed}, field, index)
    return _add_columns(ds, make, cluster)


def _add_columns(
    ds: Dataset, make_function: Callable[[], Callable[[Rows], Rows]], cluster: Cluster | None
) -> Dataset:
    cluster = cluster or Cluster()
    cluster.connect()
    return ds.map_batches(
        _RowWorker,
        fn_constructor_args=[make_function],
        batch_size=_ROWS,
        batch_format="pyarrow",
        **cluster.actor_options(_CPUS_FOR_FILES),
    )


class _RowWorker:
    def __init__(self, make_function: Callable[[], Callable[[Rows], Rows]]) -> None:
        self._function = make_function()

    def __call__(self, table: Any) -> Any:
        import pyarrow

        rows = table.to_pylist()
        added = self._function(rows)
        for name in added[0] if added else ():
            table = table.append_column(name, pyarrow.array([row[name] for row in added]))
        return table


def _make_scorer(source: ModelArguments, options: ScoreOptions) -> Callable[[Rows], Rows]:
    lm = source.load()
    check_score_options(lm, options)
    return lambda rows: score_documents(lm, [row[options.field] for row in rows], options)


def _make_encoder(source: ModelArguments, field: str) -> Callable[[Rows], Rows]:
    from gpt2np.hub import find_vocabulary
    from gpt2np.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(find_vocabulary(source.options.model).path)
    encode = partial(tokenizer.encode, disallowed_special=())
    return lambda rows: [{"ids": encode(row[field])} for row in rows]


def _make_generator(
    source: ModelArguments, options: dict[str, Any], field: str, index: str
) -> Callable[[Rows], Rows]:
    from gpt2np.prompts.job import continue_lines

    lm = source.load()

    def run(rows: Rows) -> Rows:
        lines = [PromptLine(row[index] + 1, row[field]) for row in rows]
        made = [results.contents[0] for _, results in continue_lines(lm, lines, options, "row")]
        completions = [json.loads(line or "{}") for line in made]
        return [{"completion": c.get("text"), "completion_ids": c.get("ids")} for c in completions]

    return run
