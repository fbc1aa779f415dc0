"""What penalties and bans read of a text."""

import numpy as np

from gpt2np.generation.logits_processors import (
    TokenHistory,
    add_logit_bias,
    process_logits,
    repeated_ngram_ids,
)
from gpt2np.generation.options import GenerationOptions

VOCAB_SIZE = 50


def test_ngrams_and_counts_by_hand():
    history = TokenHistory([1, 2, 3], [1, 2], draft=[0])
    assert history.ids == [1, 2, 3, 1, 2, 0] and history.n_generated == 3
    assert history.counts(4).tolist() == [1, 1, 1, 0]
    assert repeated_ngram_ids([1, 2, 3, 1, 2], 2) == [3]
    assert repeated_ngram_ids([1, 2, 3, 1], 1) == [2]
    assert sorted(repeated_ngram_ids([1, 2, 3], 0)) == [1, 2, 3]
    assert repeated_ngram_ids([1, 2], 2) == repeated_ngram_ids([], 0) == []


def test_banned_words_only_those_that_would_be_complete():
    words = [[int(i) % 50, int(i) // 50 % 50, 7] for i in range(2500)]
    history = TokenHistory([3, 4] * 5, [1, 2])
    for n, banned in ((1, [5, 9]), (2500, [5, 7, 9])):
        options = GenerationOptions(bad_words_ids=[*words[-n:], [1, 2, 5], [9], [3, 2, 8]])
        logits = process_logits(np.zeros(VOCAB_SIZE, np.float32), options, history, ())
        assert np.isneginf(logits).nonzero()[0].tolist() == banned


def test_a_bias_adds_up_in_the_type_of_the_logits():
    logits = np.linspace(-1, 1, VOCAB_SIZE, dtype=np.float32)
    expected = logits.copy()
    for token_id, value in ((3, 0.1), (7, -1e-3), (3, 0.3)):
        expected[token_id] += value
    bias = add_logit_bias(logits, ((3, 0.1), (7, -1e-3), (3, 0.3)))
    np.testing.assert_array_equal(bias, expected)
