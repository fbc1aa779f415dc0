"""What penalties and bans read of a text: the same as of the whole text, at a constant cost."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from gpt2np.generation.logits_processors import TokenHistory, add_logit_bias, process_logits
from gpt2np.generation.options import GenerationOptions

VOCAB_SIZE = 50
OPTIONS = {
    "repetition_penalty": 1.3,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.25,
    "no_repeat_ngram_size": 4,
    "bad_words_ids": [[3, 4], [1, 2, 5]],
    "min_new_tokens": 30,
    "max_new_tokens": 10**6,
}


class CountingList(Sequence):
    """A list that counts how many of its items are read."""

    def __init__(self, items):
        self.items, self.n_reads = items, 0

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        found = self.items[index]
        self.n_reads += len(found) if isinstance(index, slice) else 1
        return found


def test_a_long_text_costs_no_more():
    rng, options = np.random.default_rng(0), GenerationOptions(**OPTIONS)
    lengths = []
    for n in (1_000, 100_000):
        prompt = CountingList(rng.integers(0, VOCAB_SIZE, n).tolist())
        history = TokenHistory(prompt, CountingList(rng.integers(0, VOCAB_SIZE, n).tolist()))
        for _ in range(10):
            process_logits(np.zeros(VOCAB_SIZE, np.float32), options, history, ())
            history.generated.items.append(int(rng.integers(VOCAB_SIZE)))
            prompt.n_reads = history.generated.n_reads = 0
        process_logits(np.zeros(VOCAB_SIZE, np.float32), options, history, ())
        lengths.append(prompt.n_reads + history.generated.n_reads)
    assert lengths[0] == lengths[1] < 20


@pytest.mark.parametrize("draft", [[], [7], [3, 3, 1]])
def test_like_the_whole_text(draft):
    rng, options = np.random.default_rng(1), GenerationOptions(**OPTIONS)
    history = TokenHistory(rng.integers(0, 6, 9).tolist(), [])
    for _ in range(40):
        logits = rng.standard_normal(VOCAB_SIZE).astype(np.float32)
        drafted = TokenHistory(history.prompt, history.generated, draft)
        for kept, fresh in (
            (history, TokenHistory(history.prompt, list(history.generated))),
            (replace(history, draft=draft), drafted),
        ):
            result = process_logits(logits, options, kept, {2})
            np.testing.assert_array_equal(result, process_logits(logits, options, fresh, {2}))
        history.generated.append(int(rng.integers(6)))


def test_by_hand():
    history = TokenHistory([1, 2, 3], [1, 2], draft=[0])
    for _ in range(2):
        assert history.counts(4).tolist() == [1, 1, 1, 0]
        assert history.is_used(4).tolist() == [True, True, True, True]
        assert history.last(4) == [3, 1, 2, 0]
    assert replace(history, draft=[]).followers(2) == {3}
    assert replace(history, draft=[1]).followers(1) == {2}
    assert replace(history, draft=[]).followers(0) == {1, 2, 3}


def test_many_banned_words_cost_no_more():
    words = [[int(i) % 50, int(i) // 50 % 50, 7] for i in range(2500)]
    history = TokenHistory(CountingList([3, 4] * 5), CountingList([1, 2]))
    n_reads = []
    for n in (1, 2500):
        options = GenerationOptions(bad_words_ids=[*words[-n:], [1, 2, 5]])
        history.generated.n_reads = 0
        logits = process_logits(np.zeros(VOCAB_SIZE, np.float32), options, history, ())
        n_reads.append(history.generated.n_reads)
        assert np.isneginf(logits).nonzero()[0].tolist() == ([5] if n == 1 else [5, 7])
    assert n_reads[0] == n_reads[1]


def test_a_bias_adds_up_in_the_type_of_the_logits():
    logits = np.linspace(-1, 1, VOCAB_SIZE, dtype=np.float32)
    expected = logits.copy()
    for token_id, value in ((3, 0.1), (7, -1e-3), (3, 0.3)):
        expected[token_id] += value
    bias = add_logit_bias(logits, ((3, 0.1), (7, -1e-3), (3, 0.3)))
    np.testing.assert_array_equal(bias, expected)
