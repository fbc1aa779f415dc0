"""Scores of each document of a corpus: log probability, perplexity, bits per character and byte.

The definitions are those of `gpt2np.evaluation.perplexity`, for each document by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from gpt2np.data.corpus import CorpusOptions, Document, read_numbered_documents
from gpt2np.data.corpus_job import DocumentBatch, RunBatches, corpus_job, read_batches
from gpt2np.data.files import file_name
from gpt2np.data.resumable import JobCallbacks, Outcome, ReadStream, Results, run_job
from gpt2np.data.rows import assemble_rows, check_max_rows, json_line
from gpt2np.evaluation.options import ScoreOptions
from gpt2np.evaluation.perplexity import (
    PER_TEXT,
    Perplexity,
    check_score_arguments,
    score_plain_texts,
)
from gpt2np.generation.scoring import TextScore
from gpt2np.language_model import LanguageModel, model_settings

BATCH_SIZE = 1 << 14  # characters of the documents that are sorted by length and scored together

_TOKEN = {
    "id": int,
    "text": str,
    "start": int,
    "stop": int,
    "logprob": float,
    "rank": int,
    "entropy": float,
}
_COUNTS = ("tokens", "counted", "words", "characters", "bytes")
COLUMNS = {
    "file": str,
    "document": int,
    "model": str,
    "from_end_of_text": bool,
    **dict.fromkeys(_COUNTS, int),
    **dict.fromkeys(("log_probability", *PER_TEXT), float),
}
"""The columns of the results; see `gpt2np.data.parquet.Columns`."""
TOKEN_COLUMNS = {**COLUMNS, "token_scores": [_TOKEN]}
"""The columns of the results with `ScoreOptions.tokens`."""


def score_corpus(
    lm: LanguageModel,
    files: Sequence[Path],
    out: Path,
    options: ScoreOptions | None = None,
    callbacks: JobCallbacks | None = None,
    fingerprint: str = "",
    force: bool = False,
    run: RunBatches | None = None,
    max_rows_per_file: int | None = None,
) -> Outcome:
    """Score each document of `files`; the result of the Outcome is their total Perplexity.

    The rows of `out`, a .jsonl or .parquet file, have the order of the documents. A document that
    can't be read is skipped and reported. A call resumes an interrupted call; `files` may have
    additional files at the end. `fingerprint` is a digest of the model's files. `run` scores the
    batches elsewhere; see `gpt2np.distributed.jobs`. `max_rows_per_file` is that of `write_output`.

    Raises the errors of `run_job`, and:
        InvalidArgumentError: an option is invalid.
        CheckpointError: the model's logits are not finite.
    """
    options = options or ScoreOptions()
    check_score_arguments(lm, options.context, options.stride, options.from_end_of_text)
    check_max_rows(out, max_rows_per_file)
    columns = TOKEN_COLUMNS if options.tokens else COLUMNS
    job = corpus_job(
        files,
        {**model_settings(lm), **asdict(options)},
        {"the model": fingerprint},
        run or partial(_score_here, lm, options),
        partial(_assemble, columns=columns, max_rows_per_file=max_rows_per_file),
    )
    return run_job(job, out, callbacks, force=force)


def _score_here(
    lm: LanguageModel, options: ScoreOptions, files: Sequence[Path], start: tuple[int, int]
) -> Iterator[tuple[DocumentBatch[Any], Results]]:
    for batch in read_document_batches(files, options, start):
        yield batch, score_batch(lm, batch, options, files[batch.file])


def perplexity_of_files(
    lm: LanguageModel, files: Sequence[Path], options: ScoreOptions, callbacks: JobCallbacks
) -> Outcome:
    """Score each document of `files` as `score_corpus` does, but write no rows.

    The result of the Outcome is the total Perplexity.
    """
    total, n_skipped, n_tokens, n_bytes = Perplexity(), 0, 0, 0
    for batch, results in _score_here(lm, options, files, (0, 0)):
        total += _total(results.contents[0].splitlines())
        for problem in results.problems:
            callbacks.on_skip(problem)
        n_skipped += len(results.problems)
        n_tokens, n_bytes = n_tokens + results.n_tokens, n_bytes + batch.nbytes
        callbacks.on_progress(n_bytes, n_tokens)
    return Outcome(total, n_skipped, n_tokens)


def _assemble(
    read: ReadStream, out: Path, columns: dict[str, Any], max_rows_per_file: int | None
) -> Perplexity:
    assemble_rows(read, out, columns, max_rows_per_file)
    return _total(line for content in read(0) for line in content.splitlines())


def _total(lines: Iterable[bytes]) -> Perplexity:
    return sum((Perplexity.of_row(json.loads(line)) for line in lines), Perplexity())


def read_document_batches(
    files: Sequence[Path], options: ScoreOptions, start: tuple[int, int] = (0, 0)
) -> Iterator[DocumentBatch[Document]]:
    """Yield the documents of `files` in batches; `start` is that of `read_batches`."""
    read = partial(read_numbered_documents, options=CorpusOptions(field=options.field))
    return read_batches(files, read, BATCH_SIZE, start=start)


def score_batch(
    lm: LanguageModel, batch: DocumentBatch[Document], options: ScoreOptions, source: Path
) -> Results:
    """Score the documents of a batch; `source` is the name of their file in the results."""
    readable = [document for document in batch.items if document.problem is None]
    scores = score_documents(lm, [document.text for document in readable], options)
    rows = (
        {"file": file_name(source), "document": document.number, **row}
        for document, row in zip(readable, scores, strict=True)
    )
    problems = [document.problem for document in batch.items if document.problem is not None]
    n_tokens = sum(row["tokens"] for row in scores)
    return Results((b"".join(map(json_line, rows)),), problems, n_tokens)


def score_documents(
    lm: LanguageModel, texts: Sequence[str], options: ScoreOptions
) -> list[dict[str, Any]]:
    """Return the measures of each text, as in COLUMNS without "file" and "document".

    A measure is None if no token is scored.
    """
    arguments = options.context, options.stride, options.from_end_of_text, options.tokens
    rows = []
    for text, score in zip(texts, score_plain_texts(lm, texts, *arguments), strict=True):
        row = {"model": lm.name, "from_end_of_text": options.from_end_of_text}
        row |= Perplexity.of(text, score).to_json()
        del row["documents"]
        rows.append({name: row[name] for name in COLUMNS if name in row})
        if options.tokens:
            rows[-1]["token_scores"] = _token_rows(lm, score)
    return rows


def _token_rows(lm: LanguageModel, score: TextScore) -> list[dict[str, Any]]:
    assert score.ranks is not None and score.entropies is not None
    tokens = score.with_tokens(lm.tokenizer.vocabulary.token_bytes).by_token()
    arrays = (array.tolist() for array in (score.ids, score.ranks, score.entropies))
    rows = []
    for token, token_id, rank, entropy in zip(tokens, *arrays, strict=True):
        values = (token.logprob, rank, entropy) if rank > 0 else (None, None, None)
        rows.append(dict(zip(_TOKEN, (token_id, *token[:3], *values), strict=True)))
    return rows
