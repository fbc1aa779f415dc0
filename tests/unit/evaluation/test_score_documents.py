"""`score`: rows in the order of the documents, broken documents by number, resuming."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest

from gpt2np import InvalidArgumentError, LanguageModel
from gpt2np.data import resumable
from gpt2np.data.corpus import read_documents
from gpt2np.data.options import ScoreOptions
from gpt2np.data.resumable import JobCallbacks
from gpt2np.evaluation import corpus
from gpt2np.evaluation.corpus import score_corpus
from gpt2np.evaluation.perplexity import perplexity
from gpt2np.kernels.blas import small_kernels

EOT = "<|endoftext|>"


class Interrupted(BaseException):
    pass


def score(lm, files, out, options=None, **arguments):
    outcome = score_corpus(lm, files, out, options, **arguments)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert outcome.result.documents == len(rows)
    return rows, outcome


@pytest.fixture
def files(tmp_path):
    """Three files with documents of 1 to 600 tokens; two documents are broken."""
    folder = tmp_path / "texts"
    folder.mkdir()
    long = "The king was old, and the fox ran away. " * 60
    (folder / "a.txt").write_text(f"\nOne fox.\n{EOT}\n{long}\n{EOT}\n\n{EOT}Two\nkings é🦊.\n")
    lines = ['{"text": "The old king."}', "", '{"text": 3}', '{"text": ""}', '{"text": "A fox."}']
    (folder / "b.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (folder / "c.txt").write_bytes(f"Good.{EOT}bad \xff".encode("latin-1") + EOT.encode() + b"I.")
    return sorted(folder.iterdir())


@pytest.mark.parametrize("from_end_of_text", [False, True])
def test_each_row_is_the_perplexity_of_its_document(lm, files, tmp_path, from_end_of_text):
    told = []
    options = ScoreOptions(from_end_of_text=from_end_of_text)
    callbacks = JobCallbacks(on_skip=told.append)
    rows, outcome = score(lm, files, tmp_path / "o.jsonl", options, callbacks=callbacks)
    places = [(row["file"], row["document"]) for row in rows]
    a, b, c = map(str, files)
    assert places == [(a, 1), (a, 2), (a, 3), (b, 1), (b, 4), (b, 5), (c, 1), (c, 3)]
    texts = [d.text for d in read_documents(files[0])]
    texts += ["The old king.", "", "A fox.", "Good.", "I."]
    assert len(texts) == len(rows)
    for row, text in zip(rows, texts, strict=True):
        expected = (
            perplexity(lm, [text], from_end_of_text=True) if from_end_of_text and text else None
        )
        if len(lm.tokenizer.encode(text)) > 1 and not from_end_of_text:
            expected = perplexity(lm, [text], from_end_of_text=False)
        assert (row["model"], row["from_end_of_text"]) == ("bundled", from_end_of_text)
        names = set(row) - {"file", "document", "model", "from_end_of_text", "text"}
        if expected is None:
            assert row["counted"] == 0 and row["perplexity"] is row["log_probability"] is None
        else:
            found = [row[name] for name in sorted(names)]
            rel = 1e-12 if small_kernels() else 1e-5  # documents run in batches
            assert found == pytest.approx([getattr(expected, n) for n in sorted(names)], rel=rel)
    assert told == [
        f"{b}, line 3: expected a string in the field 'text'",
        f"{c}, document 2 is not UTF-8 text: byte 0xff at offset 4",
    ]
    assert outcome.n_skipped == 2


def test_tokens(lm, files, tmp_path):
    [row] = score(lm, files[2:], tmp_path / "o.jsonl", ScoreOptions(tokens=True))[0][:1]
    tokens = row["token_scores"]
    assert [token["id"] for token in tokens] == lm.tokenizer.encode("Good.")
    assert "".join(token["text"] for token in tokens) == "Good."
    logits = lm.model.forward([[lm.bos_token_id, *(token["id"] for token in tokens)]])
    for token, row_of_logits in zip(tokens, logits.astype(float), strict=False):
        logprobs = row_of_logits - np.logaddexp.reduce(row_of_logits)
        assert token["logprob"] == pytest.approx(logprobs[token["id"]], rel=1e-5)
    assert row["log_probability"] == pytest.approx(sum(t["logprob"] for t in tokens))
    options = ScoreOptions(tokens=True, from_end_of_text=False)
    [row] = score(lm, files[2:], tmp_path / "without.jsonl", options)[0][:1]
    assert row["token_scores"][0]["logprob"] is None


def test_a_model_without_end_of_text(lm, files, tmp_path):
    without = LanguageModel(lm.model, lm.tokenizer, name="mine")
    without.bos_token_id = None
    with pytest.raises(InvalidArgumentError, match="must be False: mine has no end-of-text"):
        score(without, files, tmp_path / "o.jsonl")
    rows, _ = score(without, files, tmp_path / "o.jsonl", ScoreOptions(from_end_of_text=False))
    assert rows[0]["counted"] == rows[0]["tokens"] - 1


@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_after_any_batch_the_file_is_the_same(lm, files, tmp_path, monkeypatch, every):
    monkeypatch.setattr(resumable, "SAVE_SECONDS", 0)
    monkeypatch.setattr(corpus, "BATCH_SIZE", 15)
    steps = []
    callbacks = JobCallbacks(on_progress=lambda *progress: steps.append(progress))
    score(lm, files, tmp_path / "whole.jsonl", callbacks=callbacks)
    assert len(steps) == 5
    for after in range(1, len(steps), every):
        out, calls = tmp_path / "o.jsonl", []

        def interrupt(*progress, calls=calls, after=after):
            calls.append(progress)
            if len(calls) == after:
                raise Interrupted

        with pytest.raises(Interrupted):
            score_corpus(lm, files, out, callbacks=JobCallbacks(on_progress=interrupt))
        again = []
        resumed = JobCallbacks(on_resume=again.append)
        _, outcome = score(lm, files, out, callbacks=resumed)
        assert again == [steps[after - 1][0]] and outcome.n_skipped == 2
        assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
        out.unlink()


def test_changes_are_named(lm, files, tmp_path, monkeypatch):
    monkeypatch.setattr(resumable, "SAVE_SECONDS", 0)
    monkeypatch.setattr(corpus, "BATCH_SIZE", 15)

    def interrupt(*progress):
        if progress[0] > files[0].stat().st_size:
            raise Interrupted

    options = ScoreOptions(stride=100)
    with pytest.raises(Interrupted):
        callbacks = JobCallbacks(on_progress=interrupt)
        score_corpus(lm, files, tmp_path / "o.jsonl", options, callbacks)
    with pytest.raises(InvalidArgumentError, match="`stride` was 100, is 50; undo the change"):
        score_corpus(lm, files, tmp_path / "o.jsonl", replace(options, stride=50))
    files[0].write_text("other")
    with pytest.raises(InvalidArgumentError, match=r"a\.txt has changed; undo the change"):
        score_corpus(lm, files, tmp_path / "o.jsonl", options)
    rows, _ = score(lm, files, tmp_path / "o.jsonl", options, force=True)
    assert rows[0]["characters"] == 5
