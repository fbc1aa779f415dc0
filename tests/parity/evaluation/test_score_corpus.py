"""`score` against transformers and the harness, on documents of mixed length and language."""

import json
import random

import numpy as np
import pytest
import torch
from helpers.references import load_reference

from gpt2np.data.options import ScoreOptions
from gpt2np.evaluation.corpus import score_corpus

STRIDE = 256  # half of the bundled model's context, as by default


def mixed_documents(data, count):
    """Stories, cut at random lengths, and declarations of human rights in many languages.

    One in ten may have 4,096 characters, which is more than a window.
    """
    rng = random.Random(1)
    stories = (data / "stories" / "valid.txt").read_text(encoding="utf-8").split("<|endoftext|>")
    texts = [path.read_text(encoding="utf-8") for path in sorted((data / "text/udhr").iterdir())]
    documents = []
    for number in range(count):
        text = rng.choice(texts if number % 3 == 0 else stories)
        start = rng.randrange(len(text) // 2 + 1)
        length = int(2 ** rng.uniform(3, 12 if number % 10 == 0 else 9))
        documents.append(text[start : start + length].strip() or "The fox")
    return documents


def direct(reference, tokenizer, text, context):
    """Log probability with the windows of Hugging Face's guide, summed in float64."""
    ids = torch.tensor([tokenizer.encode(text, disallowed_special=())])
    total, end = 0.0, 1
    for start in range(0, ids.shape[1], STRIDE):
        stop = min(start + context, ids.shape[1])
        if stop > end:
            with torch.no_grad():
                logits = reference(ids[:, start : stop - 1]).logits[0, end - 1 - start :]
            logprobs = torch.log_softmax(logits.float(), -1)
            chosen = logprobs.gather(1, ids[0, end:stop, None])
            total += float(chosen.double().sum())
        end = max(end, stop)
        if stop == ids.shape[1]:
            return total
    return total


def rows_of(lm, documents, folder, options=None):
    lines = (json.dumps({"text": text}) for text in documents)
    (folder / "texts.jsonl").write_text("\n".join(lines))
    score_corpus(lm, [folder / "texts.jsonl"], folder / "o.jsonl", options)
    return [json.loads(line) for line in (folder / "o.jsonl").open()]


@pytest.mark.parametrize("count", [10, pytest.param(2000, marks=pytest.mark.slow)])
def test_as_transformers(lm, bundled, data, tmp_path, count, show):
    documents = mixed_documents(data, count)
    rows = rows_of(lm, documents, tmp_path, ScoreOptions(from_end_of_text=False))
    reference = load_reference(bundled)
    context = lm.model.config.n_positions
    expected = np.array([direct(reference, lm.tokenizer, t, context) for t in documents])
    found = np.array([row["log_probability"] or 0.0 for row in rows])
    error = np.abs(found - expected) / np.maximum(np.abs(expected), 1e-9)
    show("score against transformers", f"{count} documents: {error.max():.1e} relative")
    assert error.max() < 1e-5
    assert [row["characters"] for row in rows] == [len(text) for text in documents]
    assert max(row["tokens"] for row in rows) > context


@pytest.mark.parametrize("count", [10, pytest.param(500, marks=pytest.mark.slow)])
def test_as_the_harness(lm, bundled, data, tmp_path, count, show):
    """A document of one window is scored like by loglikelihood_rolling.

    Longer documents have other windows there: without overlap, with one token of context.
    """
    reason = "needs lm-evaluation-harness"
    pytest.importorskip("lm_eval", reason=reason)
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    context = lm.model.config.n_positions
    documents = [
        text
        for text in mixed_documents(data, 2 * count)
        if len(lm.tokenizer.encode(text, disallowed_special=())) <= context
    ][:count]
    found = [row["log_probability"] for row in rows_of(lm, documents, tmp_path)]
    peer = HFLM(pretrained=str(bundled), dtype="float32", device="cpu", batch_size=1)
    requests = [Instance("loglikelihood_rolling", {}, (text,), 0) for text in documents]
    expected = np.array(peer.loglikelihood_rolling(requests, disable_tqdm=True))
    error = np.abs(found - expected) / np.abs(expected)
    show("score against the harness", f"{count} documents: {error.max():.1e} relative")
    assert len(documents) == count and error.max() < 1e-5
