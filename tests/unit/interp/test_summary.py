"""Attention summaries of handmade patterns, and induction scores."""

import numpy as np
import pytest

from gpt2np import GPT2, ContextLengthError, GPT2Config, InvalidArgumentError
from gpt2np.interp import Trace, attention_summary, induction_scores, record_pass, trace


def summary_of(pattern):
    array = np.asarray(pattern, np.float64)[None]
    arrays = {"blocks.0.attn.pattern": array}
    config = GPT2Config(n_layer=1, n_head=1)
    found = attention_summary(Trace(np.arange(array.shape[1]), config, arrays))
    return {name: value.item() for name, value in vars(found).items()}


def test_itself_and_a_single_token():
    expected = {"entropy": 0, "distance": 0, "previous_token": 0, "first_token": 0.2}
    assert summary_of(np.eye(5)) == pytest.approx(expected)
    assert summary_of([[1.0]]) == {**expected, "first_token": 1}


@pytest.mark.parametrize("n_tokens", [1, 16, 17])
def test_attention_summary_of_record_pass_averages_the_last_16_queries(lm, n_tokens):
    ids = list(range(n_tokens))
    whole = trace(lm, ids, "blocks.*.attn.pattern")
    found = attention_summary(record_pass(lm, ids))
    pattern = np.stack([array[:, -16:] for array in whole.values()])  # (L, H, R, T)
    queries = np.arange(n_tokens)[-16:]
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.nansum(pattern * np.log(pattern), -1).mean(-1)
    np.testing.assert_allclose(found.entropy, entropy, rtol=0, atol=1e-5)
    distance = (pattern * (queries[:, None] - np.arange(n_tokens))).sum(-1).mean(-1)
    np.testing.assert_allclose(found.distance, distance, rtol=0, atol=1e-5)
    rows = np.flatnonzero(queries)  # the first token has none before it
    previous = pattern[..., rows, queries[rows] - 1].mean(-1) if n_tokens > 1 else 0
    np.testing.assert_allclose(found.previous_token, previous, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found.first_token, pattern[..., 0].mean(-1), rtol=0, atol=1e-6)


def test_induction_scores_are_means_over_the_second_time(model):
    ids = [7, 100, 3, 50, 9]
    patterns = trace(model, ids * 2, "blocks.*.attn.pattern")
    expected = [
        [pattern[h, range(5, 10), range(1, 6)].mean() for h in range(3)]
        for pattern in patterns.values()
    ]
    np.testing.assert_allclose(induction_scores(model, ids), expected, atol=1e-7)


def test_by_default_random_ids_chosen_by_the_seed(model, bundled):
    # The context of 48 holds 24 ids twice.
    first, again, other = (induction_scores(model, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert first.shape == (3, 3) and (first != other).any()
    # In a trained model, a few heads do induction and most do not.
    scores = induction_scores(GPT2.from_folder(bundled))
    assert scores.max() > 5 * np.median(scores)


def test_too_few_or_too_many_ids(model):
    with pytest.raises(InvalidArgumentError, match="at least two ids"):
        induction_scores(model, [1])
    with pytest.raises(ContextLengthError, match="50 tokens"):
        induction_scores(model, range(25))
