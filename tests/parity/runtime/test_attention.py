"""Attention of packed sequences against torch, and the blocks that it is computed in."""

from itertools import pairwise

import numpy as np
from helpers.peers import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2np.model import GPT2Config, KVCache
from gpt2np.model.ops import causal_softmax
from gpt2np.runtime.batch import QUERY_BLOCK, query_blocks
from gpt2np.runtime.context import KVView
from gpt2np.runtime.kv_cache import KVStore, kv_writes, reserve

HEADS, SIZE = 3, 16
CONFIG = GPT2Config(
    vocab_size=7, n_positions=400, n_embd=HEADS * SIZE, n_layer=1, n_head=HEADS, n_inner=16
)


def append(caches, keys, values):
    """Append keys and values (H, n, D) to the cache of each sequence."""
    counts = [key.shape[1] for key in keys]
    reserve(caches, counts)
    sequences = np.repeat(range(len(counts)), counts)
    positions = [np.arange(c.length, c.length + n) for c, n in zip(caches, counts, strict=True)]
    for write in kv_writes(caches, sequences, np.concatenate(positions)):
        kv = np.stack([np.concatenate(keys, 1), np.concatenate(values, 1)])
        write.append(0, slice(None), kv)


def attend(q, k, v, lengths, cached, whole=False):
    """Attention of packed queries (H, N, D) to keys and values (H, T, D), cached tokens first."""
    caches = [KVCache(KVStore(CONFIG, q.dtype)) for _ in lengths]
    for cache, n, key, value in zip(caches, cached, k, v, strict=True):
        if n:
            append([cache], [key[:, :n]], [value[:, :n]])
            cache.length += n
    new = [[x[:, n:] for n, x in zip(cached, arrays, strict=True)] for arrays in (k, v)]
    append(caches, *new)
    adjacent = [False, *(b.place == (a.store, a.slot + 1) for a, b in pairwise(caches))]
    z = np.full_like(q, np.nan)
    patterns = []
    more = [n - cached[0] for n in cached]
    for block in query_blocks(lengths, more, None if whole else QUERY_BLOCK, adjacent):
        kv = KVView(block, caches, 0, slice(None))
        pattern = causal_softmax(kv.scores(q[:, block.tokens]), block.mask)
        patterns.append(pattern.copy())
        z[:, block.tokens] = kv.weighted_values(pattern)
    return z, patterns


@settings(deadline=None, max_examples=40)
@given(
    sequences=st.lists(
        st.tuples(st.integers(1, 150) | st.just(1), st.integers(0, 200)), min_size=1, max_size=5
    )
)
def test_against_torch(sequences):
    lengths, cached = zip(*sequences, strict=True)
    rng = np.random.default_rng(sum(lengths))
    q = rng.normal(size=(HEADS, sum(lengths), SIZE))
    k, v = ([rng.normal(size=(HEADS, n + c, SIZE)) for n, c in sequences] for _ in range(2))
    z, _ = attend(q, k, v, lengths, cached)
    start = 0
    for n, n_cached, key, value in zip(lengths, cached, k, v, strict=True):
        mask = torch.ones(n, n_cached + n, dtype=torch.bool).tril(n_cached)
        query = torch.tensor(q[:, start : start + n])
        expected = torch.nn.functional.scaled_dot_product_attention(
            query, torch.tensor(key), torch.tensor(value), attn_mask=mask, scale=1.0
        )
        np.testing.assert_allclose(z[:, start : start + n], expected.numpy(), atol=1e-12)
        start += n


def test_a_whole_pattern_is_that_of_the_blocks():
    rng = np.random.default_rng(0)
    q = rng.normal(size=(HEADS, 200, SIZE)).astype(np.float32)
    k, v = ([rng.normal(size=(HEADS, 230, SIZE)).astype(np.float32)] for _ in range(2))
    z, blocks = attend(q, k, v, [200], [30])
    whole_z, [whole] = attend(q, k, v, [200], [30], whole=True)
    assert len(blocks) > 1 and whole.shape == (HEADS, 200, 230)
    for number, block in enumerate(blocks):
        rows = whole[:, 64 * number : 64 * number + block.shape[1]]
        np.testing.assert_allclose(rows[..., : block.shape[2]], block, atol=1e-6)
        assert not rows[..., block.shape[2] :].any()
    np.testing.assert_allclose(z, whole_z, rtol=1e-5, atol=4e-6)  # not all BLAS give equal bits
    np.testing.assert_allclose(whole.sum(-1), 1, atol=1e-5)
    assert not np.triu(whole, 31).any()


def test_tokens_before_a_truncation_are_not_seen():
    """Not even beside a longer sequence, and where the truncated values are not numbers."""
    rng = np.random.default_rng(1)
    keys = rng.normal(size=(HEADS, 90, SIZE)).astype(np.float32)
    query = rng.normal(size=(HEADS, 2, SIZE)).astype(np.float32)
    results = []
    for truncated in (keys, keys * np.nan):
        short, long = (KVCache(KVStore(CONFIG)) for _ in range(2))
        append([short, long], [truncated, keys], [truncated, keys])
        for cache in (short, long):
            cache.length += 90
        short.truncate(70)
        short.truncate(0)
        append([short], [keys[:, :3]], [keys[:, :3]])
        [block] = query_blocks([1, 1], [2, 89], adjacent=[False, True])
        kv = KVView(block, [short, long], 0, slice(None))
        results.append(kv.weighted_values(causal_softmax(kv.scores(query), block.mask)))
    assert [span.count for span in block.spans] == [2] and np.isfinite(results).all()
    np.testing.assert_array_equal(*results)


def test_values_are_weighted_by_any_pattern():
    rng = np.random.default_rng(2)
    keys = rng.normal(size=(HEADS, 5, SIZE))
    cache = KVCache(KVStore(CONFIG, np.float64))
    append([cache], [keys], [keys])
    [block] = query_blocks([1], [4])
    kv = KVView(block, [cache], 0, slice(None))
    last_key_only = np.arange(5) == 4 + np.zeros((HEADS, 1, 1))
    np.testing.assert_allclose(
        kv.weighted_values(last_key_only.astype(float)), keys[:, 4:], atol=1e-12
    )
