"""N-gram tables: counted, chosen, saved and read."""

import json
import math
from collections import Counter

import numpy as np
import pytest
from make_ngram_table import build_table, count_ngrams, save_table
from safetensors.numpy import load_file, save_file

from gpt2np import CheckpointError, InvalidArgumentError, LanguageModel, Tokenizer
from gpt2np.generation.ngram_table import (
    find_ngram_table,
    hash_contexts,
    read_ngram_table,
    vocabulary_fingerprint,
)
from gpt2np.hub.model_files import NGRAM_TABLE_FILE

VOCAB_SIZE = 50
TOKENS = {i: bytes([i]) for i in range(VOCAB_SIZE)}
FINGERPRINT = vocabulary_fingerprint(TOKENS, VOCAB_SIZE)


def made(ids, n_entries=1000, vocab_size=VOCAB_SIZE, fingerprint=FINGERPRINT):
    return build_table(count_ngrams(ids, vocab_size), vocab_size, fingerprint, n_entries)


def random_ids(number, seed=0):
    """Ids in which each id has a favourite successor."""
    rng, ids = np.random.default_rng(seed), [0]
    for _ in range(number):
        follows = rng.random() < 0.6
        ids.append((7 * ids[-1] + 3) % VOCAB_SIZE if follows else int(rng.integers(VOCAB_SIZE)))
    return ids


@pytest.fixture
def table():
    return made(random_ids(5000))


class TestCounts:
    def test_as_counted_one_by_one(self):
        ids = random_ids(3000)
        for n, (keys, found) in enumerate(count_ngrams(ids, VOCAB_SIZE), 1):
            expected = Counter(zip(*(ids[i:] for i in range(n)), strict=False))
            ngrams = [
                tuple(int(k) // VOCAB_SIZE**i % VOCAB_SIZE for i in range(n))[::-1] for k in keys
            ]
            assert dict(zip(ngrams, found.tolist(), strict=True)) == expected

    def test_a_large_vocabulary(self):
        ids = [99_999, 5, 99_998] * 100
        table = made(ids, 100, 100_000)
        assert len(count_ngrams(ids, 100_000)) == 3 and table.next_ids.dtype == np.uint32
        assert table.lookup([99_999, 5])[0] == 99_998


class TestTable:
    def test_the_longest_known_context(self, table):
        ids = [*[1, 2, 3, 4] * 50, *[9, 2, 3, 5] * 60]
        table = made(ids)
        assert table.lookup([3])[0] == 5 and table.lookup([2, 3])[0] == 5
        assert table.lookup([1, 2, 3])[0] == 4
        assert table.lookup([8, 8, 8, 2, 3])[0] == 5
        assert table.lookup([8])[0] == table.lookup([])[0] == 2

    def test_probabilities_hold(self, table):
        """The stored probability is about the share of right predictions on held-out ids."""
        held_out, right, stated = random_ids(5000, seed=1), 0, 0
        for i in range(3, len(held_out)):
            next_id, probability = table.lookup(held_out[:i])
            right += next_id == held_out[i]
            stated += probability / 256
        assert right / len(held_out) == pytest.approx(0.6, abs=0.03)
        assert stated / len(held_out) == pytest.approx(0.6, abs=0.05)

    def test_contexts_that_predict_no_better_are_dropped(self, table):
        assert len(table.hashes) < 200  # 50 contexts of one id say it all
        assert len(made(random_ids(5000), 10).hashes) == 10

    def test_hashes_as_in_lookup(self):
        """Python's integers and NumPy's give the same hash."""
        ids = [50256, 50255, 50254, 50253] * 20 + [50255, 7] * 30 + [50254, 8] * 30
        table = made(ids, 100, 50257)
        assert table.lookup([50256, 50255, 50254])[0] == 50253
        assert hash_contexts(np.array([0], np.uint64), 0)[0] in table.hashes


class TestFile:
    def test_read_as_saved(self, table, tmp_path):
        save_table(table, tmp_path / "t.safetensors")
        result = read_ngram_table(tmp_path / "t.safetensors")
        assert [p.name for p in tmp_path.iterdir()] == ["t.safetensors"]
        assert (result.vocab_size, result.fingerprint) == (VOCAB_SIZE, FINGERPRINT)
        assert result.matches(TOKENS) and result.matches({**TOKENS, 50: b"added"})
        assert not result.matches({**TOKENS, 3: b"x"}) and not result.matches({})
        for ids in ([1], [5, 6, 7], [0]):
            assert result.lookup(ids) == table.lookup(ids)

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"version": 2}, "its version is not 1"),
            ({"vocab_size": math.inf}, "its vocab_size is not an integer"),
            ({"vocab_size": None}, "vocab_size"),
            ({"hashes": lambda x: x.astype(np.int64)}, "hashes has the wrong dtype"),
            ({"next_ids": lambda x: x[1:].copy()}, "next_ids has the wrong dtype or shape"),
            ({"probabilities": lambda x: None}, "probabilities"),
        ],
    )
    def test_damaged(self, table, tmp_path, change, reason):
        path = tmp_path / "t.safetensors"
        save_table(table, path)
        description = {"version": 1, "vocab_size": VOCAB_SIZE, "vocabulary_sha256": FINGERPRINT}
        arrays = load_file(path)
        for name, value in change.items():
            if callable(value):
                arrays[name] = value(arrays[name])
            else:
                description[name] = value
        description = {name: value for name, value in description.items() if value is not None}
        metadata = {"gpt2np_ngram_table": json.dumps(description)}
        save_file({n: a for n, a in arrays.items() if a is not None}, path, metadata)
        with pytest.raises(CheckpointError, match=f"not an n-gram table .*{reason}"):
            read_ngram_table(path)

    def test_no_table(self, tmp_path, bundled):
        damaged = tmp_path / "t.safetensors"
        damaged.write_bytes(b"\xff" * 100)
        for path in (damaged, tmp_path, tmp_path / "none", bundled / "model.safetensors"):
            with pytest.raises(CheckpointError, match="not an n-gram table"):
                read_ngram_table(path)


class TestOfAModel:
    def test_in_its_folder(self, table, tmp_path):
        save_table(table, tmp_path / NGRAM_TABLE_FILE)
        assert find_ngram_table(tmp_path, TOKENS).lookup([1]) == table.lookup([1])
        assert find_ngram_table(tmp_path, {0: b"a"}) is None
        assert find_ngram_table(tmp_path / "none", TOKENS) is None

    def test_of_the_package_for_gpt2_only(self, gpt2_vocabulary, table, tmp_path):
        """Also beside a table of another vocabulary, as of a model with another tokenizer."""
        save_table(table, tmp_path / NGRAM_TABLE_FILE)
        tokenizer = Tokenizer.load(gpt2_vocabulary)
        tokens = tokenizer.vocabulary.token_bytes
        found = find_ngram_table(tmp_path, tokens)
        next_id = found.lookup(tokenizer.encode("Once upon a"))[0]
        assert tokenizer.decode([next_id]) == " time"
        assert find_ngram_table(None, {**tokens, 100: b"other"}) is None

    def test_a_table_of_another_vocabulary(self, bundled, table, tmp_path):
        save_table(table, tmp_path / "t.safetensors")
        with pytest.raises(InvalidArgumentError, match=r"t.safetensors has another vocabulary"):
            LanguageModel.load(bundled, draft=tmp_path / "t.safetensors")
