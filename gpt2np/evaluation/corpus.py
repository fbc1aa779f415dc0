"""Scores of each document of a corpus: log probability, perplexity, bits per character and byte.

The definitions are those of `gpt2np.evaluation.perplexity`, for each document by itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from gpt2np.data.corpus import Document, read_documents
from gpt2np.data.corpus_job import DocumentBatch, MapItems, corpus_job, read_batches
from gpt2np.data.files import file_name
from gpt2np.data.options import ScoreOptions
from gpt2np.data.resumable import START, JobCallbacks, Outcome, Position, Results, run_job
from gpt2np.data.rows import add_columns, assemble_rows, json_line
from gpt2np.data.workers import map_here
from gpt2np.errors import errors_at
from gpt2np.evaluation.perplexity import (
    MEASURES,
    Perplexity,
    check_score_options,
    score_in_windows,
)
from gpt2np.generation.scoring import TextScore
from gpt2np.language_model import LanguageModel, model_settings
from gpt2np.tokenizer.normalizer import check_special

BATCH_SIZE = 1 << 14  # characters of the documents that are sorted by length and scored together

_TOKEN = {
    "id": int,
    "text": str,
    "start": int,
    "stop": int,
    "logprob": float,
}
_COUNTS = ("tokens", "counted", "words", "characters", "bytes")
COLUMNS = {
    "file": str,
    "document": int,
    "model": str,
    "from_end_of_text": bool,
    **dict.fromkeys(_COUNTS, int),
    **dict.fromkeys(("log_probability", *MEASURES), float),
}
"""The columns of the results; see `gpt2np.data.parquet.Columns`."""
TOKEN_COLUMNS = {**COLUMNS, "token_scores": [_TOKEN]}
"""The columns of the results with `ScoreOptions.tokens`."""

BatchScorer = Callable[[DocumentBatch[Document]], Results]


def score_corpus(
    lm: LanguageModel,
    files: Sequence[Path],
    out: Path,
    options: ScoreOptions | None = None,
    callbacks: JobCallbacks | None = None,
    *,
    force: bool = False,
    map_items: MapItems = map_here,
    make_scorer: Callable[[], BatchScorer] | None = None,
) -> Outcome:
    """Score each document of `files`; the result of the Outcome is their total Perplexity.

    The rows of `out`, a .jsonl, .csv or .parquet file, have the order of the documents, and begin
    with the columns of the input row. A document that can't be read is skipped and reported. A call
    resumes an interrupted call; `files` may have additional files at the end. `map_items` may
    call `make_scorer` elsewhere; see `gpt2np.distributed`.

    Raises the errors of `run_job`, and:
        InvalidArgumentError: an option is invalid.
        CheckpointError: the model's logits are not finite.
    """
    options = options or ScoreOptions()
    check_score_options(lm, options)
    names = [file_name(file) for file in files]
    make_scorer = make_scorer or partial(partial, score_batch, lm, options, names)

    def run(position: Position) -> Iterator[tuple[DocumentBatch[Document], Results]]:
        return map_items(make_scorer, read_document_batches(files, options, position))

    job = corpus_job(
        files,
        {**model_settings(lm), **asdict(options)},
        run,
        partial(_assemble, columns=TOKEN_COLUMNS if options.tokens else COLUMNS),
    )
    return run_job(job, out, callbacks, force=force)


def perplexity_of_files(
    lm: LanguageModel, files: Sequence[Path], options: ScoreOptions, callbacks: JobCallbacks
) -> Outcome:
    """Score each document of `files` as `score_corpus` does, but write no rows.

    The result of the Outcome is the total Perplexity.
    """
    check_score_options(lm, options)
    total, n_skipped, n_tokens, n_bytes = Perplexity(), 0, 0, 0
    for batch in read_document_batches(files, options):
        results = score_batch(lm, options, [file_name(file) for file in files], batch)
        total += _total(results.contents[0].splitlines())
        for problem in results.problems:
            callbacks.on_skip(problem)
        n_skipped += len(results.problems)
        n_tokens, n_bytes = n_tokens + results.n_tokens, n_bytes + batch.nbytes
        callbacks.on_progress(n_bytes, n_tokens)
    return Outcome(total, n_skipped, n_tokens)


def _assemble(streams: Sequence[Path], out: Path, columns: dict[str, Any]) -> Perplexity:
    assemble_rows(streams, out, columns)
    with streams[0].open("rb") as lines:
        return _total(lines)


def _total(lines: Iterable[bytes]) -> Perplexity:
    return sum((Perplexity.of_row(json.loads(line)) for line in lines), Perplexity())


def read_document_batches(
    files: Sequence[Path], options: ScoreOptions, start: Position = START
) -> Iterator[DocumentBatch[Document]]:
    """Yield the documents of `files` in batches; for `start`, see `read_batches`."""

    def read(file: Path) -> Iterator[tuple[Document, int, int]]:
        for document in read_documents(file, options.field):
            yield document, len(document.text), len(document.text.encode())

    return read_batches(files, read, BATCH_SIZE, start=start)


def score_batch(
    lm: LanguageModel,
    options: ScoreOptions,
    names: Sequence[str],
    batch: DocumentBatch[Document],
) -> Results:
    """Score the documents of a batch; `names` are the names of the files in the results.

    Raises InvalidArgumentError if `options.special` is "error" and a text has a special token.
    """
    readable = [document for document in batch.items if document.problem is None]
    for document in readable:
        with errors_at(f"{names[batch.file]} document {document.number}: "):
            check_special(document.text, lm.tokenizer.special_tokens, options.special)
    scores = score_documents(lm, [document.text for document in readable], options)
    rows = []
    for document, score in zip(readable, scores, strict=True):
        row = {"file": names[batch.file], "document": document.number, **score}
        rows.append(json_line(add_columns(document.columns, row, TOKEN_COLUMNS)))
    problems = [document.problem for document in batch.items if document.problem is not None]
    n_tokens = sum(row["tokens"] for row in scores)
    return Results((b"".join(rows),), problems, n_tokens)


def score_documents(
    lm: LanguageModel, texts: Sequence[str], options: ScoreOptions
) -> list[dict[str, Any]]:
    """Return the measures of each text, as in COLUMNS without "file" and "document".

    A measure is None if no token is scored.
    """
    rows = []
    for text, score in zip(texts, score_in_windows(lm, texts, options), strict=True):
        row = {"model": lm.name, "from_end_of_text": options.from_end_of_text}
        row |= Perplexity.of(text, score).to_json()
        del row["documents"]
        rows.append({name: row[name] for name in COLUMNS if name in row})
        if options.tokens:
            rows[-1]["token_scores"] = _token_rows(lm, score)
    return rows


def _token_rows(lm: LanguageModel, score: TextScore) -> list[dict[str, Any]]:
    rows = []
    tokens = score.with_tokens(lm.tokenizer.vocabulary.token_bytes).by_token()
    for token_id, token in zip(score.ids.tolist(), tokens, strict=True):
        logprob = None if math.isnan(token.logprob) else token.logprob
        rows.append(dict(zip(_TOKEN, (token_id, *token[:3], logprob), strict=True)))
    return rows
