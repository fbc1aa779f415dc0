"""`score` against lm-evaluation-harness, on documents of mixed length and language.

tests/unit/evaluation/test_score_documents.py compares each row with `perplexity`, which
test_perplexity.py compares with transformers.
"""

import json
import random

import numpy as np
import pytest

from gpt2np.evaluation.corpus import score_corpus


def mixed_documents(data, count):
    """Return stories, cut at random lengths, and declarations of human rights in many languages."""
    rng = random.Random(1)
    stories = (data / "stories" / "valid.txt").read_text(encoding="utf-8").split("<|endoftext|>")
    texts = [path.read_text(encoding="utf-8") for path in sorted((data / "text/udhr").iterdir())]
    documents = []
    for number in range(count):
        text = rng.choice(texts if number % 3 == 0 else stories)
        start = rng.randrange(len(text) // 2 + 1)
        length = int(2 ** rng.uniform(3, 9))
        documents.append(text[start : start + length].strip() or "The fox")
    return documents


def rows_of(lm, documents, folder):
    lines = (json.dumps({"text": text}) for text in documents)
    (folder / "texts.jsonl").write_text("\n".join(lines))
    score_corpus(lm, [folder / "texts.jsonl"], folder / "o.jsonl")
    return [json.loads(line) for line in (folder / "o.jsonl").open()]


@pytest.mark.parametrize("count", [10, pytest.param(500, marks=pytest.mark.slow)])
def test_as_the_harness(lm, bundled, data, tmp_path, count):
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
    assert len(documents) == count and error.max() < 1e-5
