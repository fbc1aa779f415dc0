"""Scores of each document of a corpus: log probability, perplexity, bits per character and byte.

The definitions are those of `gpt2np.evaluation.perplexity`, for each document by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpt2np.data.corpus import CorpusOptions, Document, read_numbered_documents
from gpt2np.data.corpus_job import DocumentBatch, RunBatches, corpus_job, read_batches
from gpt2np.data.files import file_name
from gpt2np.data.resumable import JobCallbacks, Outcome, Results, run_job
from gpt2np.data.rows import assemble_rows, check_max_rows, json_line
from gpt2np.errors import InvalidArgumentError
from gpt2np.evaluation.options import ScoreOptions
from gpt2np.evaluation.perplexity import Perplexity
from gpt2np.generation.scoring import TextScore, check_window, score_texts
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
_MEASURES = ("log_probability", "perplexity", "bits_per_character", "bits_per_byte")
_COUNTS = ("tokens", "counted", "characters", "bytes")
COLUMNS = {
    "file": str,
    "document": int,
    **dict.fromkeys(_COUNTS, int),
    **dict.fromkeys(_MEASURES, float),
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
    """Score each document of `files`; the result of the Outcome is the number of documents.

    The rows of `out`, a .jsonl or .parquet file, have the order of the documents. A document that
    can't be read is skipped and reported. A call resumes an interrupted call; `files` may have
    additional files at the end. `fingerprint` is a digest of the model's files. `run` scores the
    batches elsewhere; see `gpt2np.distributed.jobs`. `max_rows_per_file` is that of `write_output`.

    Raises the errors of `run_job`, and:
        InvalidArgumentError: an option is invalid.
        CheckpointError: the model's logits are not finite.
    """
    options = options or ScoreOptions()
    check_score_options(lm, options)
    check_max_rows(out, max_rows_per_file)
    columns = TOKEN_COLUMNS if options.tokens else COLUMNS
    job = corpus_job(
        files,
        {**model_settings(lm), **asdict(options)},
        {"the model": fingerprint},
        run or partial(_score_here, lm, options),
        partial(assemble_rows, columns=columns, max_rows_per_file=max_rows_per_file),
    )
    return run_job(job, out, callbacks, force=force)


def _score_here(
    lm: LanguageModel, options: ScoreOptions, files: Sequence[Path], start: tuple[int, int]
) -> Iterator[tuple[DocumentBatch[Any], Results]]:
    for batch in read_document_batches(files, options, start):
        yield batch, score_batch(lm, batch, options, files[batch.file])


def check_score_options(lm: LanguageModel, options: ScoreOptions) -> None:
    """Raise InvalidArgumentError if an option is invalid for the model."""
    check_window(lm.model, options.context, options.stride)
    if options.from_end_of_text and lm.bos_token_id is None:
        raise InvalidArgumentError(
            "{0} has no end-of-text token to put before a document; set "
            "{from_end_of_text.setting}, which leaves the first token unscored",
            lm.name,
            from_end_of_text=False,
        )


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

    Texts of similar length share forward passes. A measure is None if no token is scored.
    """
    context, stride = check_window(lm.model, options.context, options.stride)
    prefix = [lm.bos_token_id] if options.from_end_of_text and lm.bos_token_id is not None else []
    inputs = [lm.tokenizer.encode_to_numpy(text, disallowed_special=()) for text in texts]
    order = sorted(range(len(texts)), key=lambda i: len(inputs[i]))
    shortest_first = [inputs[i] for i in order]
    prefixes = [prefix] * len(texts)
    scores = score_texts(
        lm.model, shortest_first, prefixes, context, stride, details=options.tokens
    )
    rows: list[dict[str, Any]] = [{}] * len(texts)
    for i, score in zip(order, scores, strict=True):
        rows[i] = _measures(texts[i], score, context, stride)
        if options.tokens:
            rows[i]["token_scores"] = _token_rows(lm, score)
    return rows


def _measures(text: str, score: TextScore, context: int, stride: int) -> dict[str, Any]:
    result = Perplexity.of(
        [text],
        tokens=len(score.ids),
        context=context,
        stride=stride,
        counted=score.n_scored,
        log_probability=score.total,
        guide_mean=np.nan,
    )
    known = {*_COUNTS, *(_MEASURES if score.n_scored else ())}
    return {n: getattr(result, n) if n in known else None for n in (*_COUNTS, *_MEASURES)}


def _token_rows(lm: LanguageModel, score: TextScore) -> list[dict[str, Any]]:
    assert score.ranks is not None and score.entropies is not None
    tokens = score.with_tokens(lm.tokenizer.vocabulary.token_bytes).by_token()
    arrays = (array.tolist() for array in (score.ids, score.ranks, score.entropies))
    rows = []
    for token, token_id, rank, entropy in zip(tokens, *arrays, strict=True):
        values = (token.logprob, rank, entropy) if rank > 0 else (None, None, None)
        rows.append(dict(zip(_TOKEN, (token_id, *token[:3], *values), strict=True)))
    return rows
