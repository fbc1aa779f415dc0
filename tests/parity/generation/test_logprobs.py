"""Log probabilities against transformers in float64, of generated tokens and of prompts."""

import tracemalloc

import numpy as np
import pytest
from helpers.peers import torch
from helpers.references import load_reference, reference_logits, to_float64

from gpt2np.generation.sampling import log_softmax, token_logprob


@pytest.fixture(scope="module")
def exact(bundled):
    """Function from ids to transformers' log probabilities (T, V) in float64."""
    model = to_float64(load_reference(bundled))
    return lambda ids: torch.log_softmax(torch.tensor(reference_logits(model, ids)), -1).numpy()


def check(result, ids, logs, top):
    """Compare log probabilities of ids with the reference distributions, one row per id."""
    assert [item.id for item in result] == list(ids)
    for item, row in zip(result, logs, strict=True):
        assert item.logprob == pytest.approx(row[item.id], abs=5e-5)
        likeliest = np.argsort(-row, kind="stable")[:top]
        assert [token_id for token_id, _ in item.top] == likeliest.tolist()
        np.testing.assert_allclose([p for _, p in item.top], row[likeliest], atol=5e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 0.6, "top_k": 3, "repetition_penalty": 1.5, "seed": 1},
        {"num_return_sequences": 3, "seed": 2},
    ],
)
def test_generated_tokens(lm, exact, options):
    """Log probabilities are the model's own, whatever penalties and filters apply."""
    result = lm.generate("Once upon a time", max_new_tokens=20, logprobs=4, **options)
    logs = exact([*result.prompt_ids, *result.ids])[len(result.prompt_ids) - 1 : -1]
    check(result.logprobs, result.ids, logs, 4)


def test_a_prompt(lm, exact, data):
    text = (data / "stories" / "valid.txt").read_text(encoding="utf-8")[:900]
    result = lm.generate(text, max_new_tokens=1, seed=0, prompt_logprobs=3)
    assert 100 < len(result.prompt_ids) == len(result.prompt_logprobs)
    assert result.prompt_logprobs[0] is None and result.logprobs is None
    check(result.prompt_logprobs[1:], result.prompt_ids[1:], exact(result.prompt_ids)[:-1], 3)


def test_they_change_nothing(lm):
    options = {"seed": 4, "max_new_tokens": 20}
    plain = lm.generate("The king", **options)
    for further in ({"logprobs": 0}, {"prompt_logprobs": 5}, {"logprobs": 2, "prompt_logprobs": 0}):
        assert lm.generate("The king", **options, **further).ids == plain.ids
    assert plain.logprobs is plain.prompt_logprobs is None
    assert all(not item.top for item in lm.generate("x", logprobs=0, max_new_tokens=3).logprobs)


def test_ties_and_extremes():
    logits = np.array([1, 3, 3, 2, 3], np.float32)
    assert [i for i, _ in token_logprob(logits, 0, 2).top] == [1, 2]
    assert [i for i, _ in token_logprob(logits, 0, 99).top] == [1, 2, 4, 3, 0]
    np.testing.assert_allclose(log_softmax(np.float32([1e30, 0])), [0, -1e30], rtol=1e-6)
    assert np.exp(log_softmax(np.float32([-80, -81, -90]))).sum() == pytest.approx(1)


def test_long_prompts_take_little_memory(lm):
    """Peak memory stays below all logits (T, V): 8 MB here, 200 MB for GPT-2."""
    ids = np.random.default_rng(0).integers(0, 4000, 512).tolist()
    most = 0.8 * 512 * 4096 * 4 + 2 * 512 * 4 * 256 * lm.model.config.n_layer
    for _ in range(3):  # other threads allocate memory, too
        tracemalloc.start()
        result = lm.generate(ids, max_new_tokens=1, prompt_logprobs=2)
        assert len(result.prompt_logprobs) == 512
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        if peak < most:
            break
    assert peak < most
