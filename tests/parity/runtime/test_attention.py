"""Attention of packed sequences against torch, and the groups that it is computed in."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2np.model import GPT2Config, KVCache
from gpt2np.runtime.kv_cache import make_room, new_tokens
from gpt2np.runtime.query_blocks import attention_pattern, mixed_values, query_groups

HEADS, SIZE = 3, 16
CONFIG = GPT2Config(
    vocab_size=7, n_positions=400, n_embd=HEADS * SIZE, n_layer=1, n_head=HEADS, n_inner=16
)


def keep(caches, keys, values):
    """Put new ones (H, n, D) of each sequence behind those that its cache has."""
    counts = [key.shape[1] for key in keys]
    make_room(caches, counts)
    ends = np.cumsum(counts).tolist()
    tokens = [slice(end - n, end) for end, n in zip(ends, counts, strict=True)]
    for some in new_tokens(caches, tokens):
        some.put(0, slice(None), np.concatenate(keys, 1), np.concatenate(values, 1))


def held_by(caches, group):
    return [
        caches[block.sequence].held(0, slice(None), block.seen, block.count)
        for block in group.blocks
    ]


def attend(q, k, v, lengths, before, whole=False):
    """Packed queries (H, N, D); keys and values (H, T, D) of each sequence, cached ones first."""
    caches = [KVCache(CONFIG, q.dtype) for _ in lengths]
    for cache, cached, key, value in zip(caches, before, k, v, strict=True):
        if cached:
            keep([cache], [key[:, :cached]], [value[:, :cached]])
            cache.advance(cached)
    new = [[x[:, n:] for n, x in zip(before, arrays, strict=True)] for arrays in (k, v)]
    keep(caches, *new)
    beside = [False, *(b.lies_behind(a) for a, b in pairwise(caches))]
    z = np.full_like(q, np.nan)
    patterns = []
    for group in query_groups(lengths, before, q.dtype, beside=beside, whole=whole):
        query = np.repeat(q[:, group.tokens], group.times, axis=1)
        held = held_by(caches, group)
        pattern = attention_pattern(query, held, group)
        assert not pattern[..., group.seen :].any()
        patterns.append(pattern[:, :: group.times, : group.seen])
        z[:, group.tokens] = mixed_values(pattern, held, group)
    return z, patterns


@settings(deadline=None, max_examples=60)
@given(
    sequences=st.lists(
        st.tuples(st.integers(1, 150) | st.just(1), st.integers(0, 200)), min_size=1, max_size=5
    )
)
def test_against_torch(sequences):
    lengths, before = zip(*sequences, strict=True)
    rng = np.random.default_rng(sum(lengths))
    q = rng.normal(size=(HEADS, sum(lengths), SIZE))
    k, v = ([rng.normal(size=(HEADS, n + c, SIZE)) for n, c in sequences] for _ in range(2))
    z, _ = attend(q, k, v, lengths, before)
    start = 0
    for n, cached, key, value in zip(lengths, before, k, v, strict=True):
        mask = torch.ones(n, cached + n, dtype=torch.bool).tril(cached)
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


@pytest.mark.parametrize(
    ("lengths", "before", "tokens"),
    [
        ([1, 1, 1], [5, 0, 9], [(0, 3)]),
        ([150], [0], [(0, 64), (64, 128), (128, 150)]),
        ([1] * 70, [3] * 70, [(0, 64), (64, 70)]),
        ([60, 10], [0, 0], [(0, 60), (60, 70)]),
    ],
)
def test_short_blocks_share_a_group(lengths, before, tokens):
    groups = query_groups(lengths, before, np.float32)
    assert [(group.tokens.start, group.tokens.stop) for group in groups] == tokens


def test_what_a_cache_held_before_it_was_cut_back_is_not_seen():
    """Not even beside a longer sequence, and where what was held is not a number."""
    rng = np.random.default_rng(1)
    keys = rng.normal(size=(HEADS, 90, SIZE)).astype(np.float32)
    query = rng.normal(size=(HEADS, 2, SIZE)).astype(np.float32)
    results = []
    for before in (keys, keys * np.nan):
        short, long = (KVCache(CONFIG) for _ in range(2))
        keep([short, long], [before, keys], [before, keys])
        for cache in (short, long):
            cache.advance(90)
        short.truncate(70)
        short.truncate(0)
        keep([short], [keys[:, :3]], [keys[:, :3]])
        [group] = query_groups([1, 1], [2, 89], np.float32, beside=[False, True])
        held = held_by([short, long], group)
        pattern = attention_pattern(np.repeat(query, group.times, axis=1), held, group)
        results.append(mixed_values(pattern, held, group))
    assert [block.count for block in group.blocks] == [2] and np.isfinite(results).all()
    np.testing.assert_array_equal(*results)
