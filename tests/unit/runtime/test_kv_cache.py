"""KV caches of sequences that start, end, are copied and truncated, in any store."""

import copy
import dataclasses
import gc
import subprocess
import sys

import numpy as np
import pytest

from gpt2np import GPT2
from gpt2np.checkpoint.config import weight_shapes
from gpt2np.errors import InvalidArgumentError
from gpt2np.kernels.blas import small_kernels
from gpt2np.model import GPT2Config, KVCache, last_token_indices
from gpt2np.runtime.batch import make_batches
from gpt2np.runtime.kv_cache import TILE, KVStore, reserve

CONFIG = GPT2Config(vocab_size=211, n_positions=500, n_embd=24, n_layer=2, n_head=3, n_inner=96)


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    shapes = weight_shapes(CONFIG).items()
    weights = {name: rng.standard_normal(shape, np.float32) * 0.3 for name, shape in shapes}
    return GPT2(CONFIG, weights)


class Sequences:
    """Sequences of a model, and random operations on them."""

    def __init__(self, model, seed):
        self.model, self.rng, self.checked = model, np.random.default_rng(seed), 0
        self.all: list[tuple[list[int], KVCache]] = []

    def come(self):
        for _ in range(self.rng.integers(1, 5)):
            self.all.append(([], self.model.new_cache()))

    def grow(self):
        """Append tokens to some sequences, mostly one each; compare with a fresh forward pass."""
        if not self.all:
            return
        count = self.rng.integers(1, len(self.all) + 1)
        chosen = [self.all[i] for i in self.rng.permutation(len(self.all))[:count]]
        most = self.rng.choice([1, 1, 3, 150])
        new = [self.rng.integers(0, 211, self.rng.integers(1, most + 1)) for _ in chosen]
        fit = [i for i, (ids, _) in enumerate(chosen) if len(ids) + len(new[i]) <= 500]
        chosen, new = [chosen[i] for i in fit], [new[i] for i in fit]
        if not chosen:
            return
        logits = self.model.forward(
            new, [cache for _, cache in chosen], logits_indices=last_token_indices(new)
        )
        for row, (ids, cache), some in zip(logits, chosen, new, strict=True):
            ids.extend(map(int, some))
            assert cache.length == len(ids)
            expected = self.model.forward([ids], logits_indices=[len(ids) - 1])[0]
            np.testing.assert_allclose(row, expected, atol=1e-3)
            if small_kernels():
                np.testing.assert_array_equal(row, expected)
            self.checked += 1

    def one_more_each(self):
        for _ in range(3):
            ids = [[7]] * len(self.all)
            if ids and max(len(known) for known, _ in self.all) < 500:
                self.model.forward(ids, [cache for _, cache in self.all])
                for known, _ in self.all:
                    known.append(7)

    def be_cut(self):
        for ids, cache in self.all[::2]:
            length = int(self.rng.integers(0, len(ids) + 1))
            cache.truncate(length)
            del ids[length:]

    def be_copied(self):
        for ids, cache in self.all[:2]:
            self.all.append((list(ids), cache.copy()))

    def go(self):
        keep = self.rng.random(len(self.all)) < 0.7
        self.all = [pair for pair, kept in zip(self.all, keep, strict=True) if kept][:12]


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))]
)
def test_random_operations_leave_each_sequence_as_if_alone(model, seed):
    sequences = Sequences(model, seed)
    operations = ["come", "grow", "grow", "grow", "one_more_each", "be_cut", "be_copied", "go"]
    for _ in range(60):
        getattr(sequences, sequences.rng.choice(operations))()
    assert sequences.checked > 50


def slots(caches):
    assert len({id(cache.store) for cache in caches}) == 1
    return [cache.slot for cache in caches]


class TestSlots:
    def grown(self, count, tokens):
        caches = [KVCache(KVStore(CONFIG)) for _ in range(count)]
        reserve(caches, [tokens] * count)
        for cache in caches:
            cache.length += tokens
        return caches

    def test_new_cache_takes_a_free_slot(self):
        caches = self.grown(4, 20)
        store = caches[0].store
        del caches[1]
        gc.collect()
        caches.append(KVCache(KVStore(CONFIG)))
        reserve(caches, [1, 1, 1, 30])
        assert slots(caches) == [0, 2, 3, 1] and caches[0].store is store

    def test_caches_move_to_a_new_store_without_a_free_slot(self):
        caches = [*self.grown(4, 20), KVCache(KVStore(CONFIG))]
        store = caches[0].store
        reserve(caches, [1] * 5)
        assert slots(caches) == [0, 1, 2, 3, 4] and caches[0].store is not store

    def test_capacity_doubles_up_to_the_context(self):
        [cache] = self.grown(1, 20)
        capacities = []
        for _ in range(500 - 20):
            reserve([cache], [1])
            cache.length += 1
            capacities.append(len(cache.store.keys) * TILE)
        assert sorted(set(capacities)) == [TILE, 3 * TILE, 7 * TILE, 512]

    def test_deep_copies_continue_alone(self, model):
        ids = list(range(100))
        caches = [model.new_cache() for _ in range(3)]
        model.forward([ids] * 3, caches)
        other = copy.deepcopy(caches[1])
        model.forward([[7]], [caches[1]])  # each goes on by itself
        logits = model.forward([[5], [5]], [other, caches[2]])
        expected = model.forward([[*ids, 5]], logits_indices=[100])
        np.testing.assert_allclose(logits, np.repeat(expected, 2, 0), atol=1e-3)
        assert other.length == 101 and other.copy().length == 101

    def test_unused_capacity_takes_no_memory(self):
        pytest.importorskip("resource")
        program = """
from gpt2np.benchmark.machine import peak_memory
from gpt2np.model import GPT2Config, KVCache
from gpt2np.runtime.kv_cache import KVStore, reserve
config = GPT2Config(n_embd=768, n_layer=12, n_head=12)  # 75 MB a sequence at 1,024 tokens
caches, before = [KVCache(KVStore(config)) for _ in range(16)], peak_memory()
reserve(caches, [900, *[1] * 15])
print(caches[0].store.keys.nbytes, peak_memory() - before)
"""
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
        reserved, used = map(int, result.stdout.split())
        assert reserved > 500e6 and used < 30e6


@pytest.mark.parametrize("change", [{}, {"n_layer": 3}, {"n_head": 2}])
def test_a_cache_of_another_model_is_refused(model, change):
    shapes = weight_shapes(config := dataclasses.replace(CONFIG, **change)).items()
    other = GPT2(config, {name: np.zeros(shape, np.float32) for name, shape in shapes})
    for cache in (other.new_cache(), other.new_cache().copy(), KVCache(KVStore(CONFIG))):
        with pytest.raises(InvalidArgumentError, match="another model's"):
            model.forward([[1]], [cache])


def test_threads_of_attention_depend_on_the_lengths_not_on_earlier_steps(model, monkeypatch):
    workers = []

    def record(*arguments, **options):
        workers.append(arguments[3])
        return make_batches(*arguments, **options)

    monkeypatch.setattr("gpt2np.runtime.model_runner.make_batches", record)
    monkeypatch.setattr("gpt2np.runtime.model_runner.python_threads", lambda: 2)
    work = 2 * 300 * 4 * model.config.n_embd  # of attention to 300 tokens of each of 4 texts
    monkeypatch.setattr("gpt2np.runtime.model_runner.MIN_SHARED_WORK", work)
    caches = [model.new_cache() for _ in range(4)]
    model.forward([[5] * 15] * 4, caches)
    for _ in range(290):
        model.forward([[5]] * 4, caches)
    assert workers[-1] == 2 and workers.count(2) == 290 + 15 - 299
    model.forward([[5]] * 4, [cache.copy() for cache in caches])
    assert workers[-1] == 2
