"""The API of Tokenizer beyond ids: batches, arrays, offsets, merges, threads, files."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Rust

from gpt2np import ModelNotFoundError, Tokenizer, TokenizerError
from gpt2np.tokenizer import tokenizer as tokenizer_module
from gpt2np.tokenizer.bpe import BoundedCache
from gpt2np.tokenizer.formats import read_vocabulary

EOT = "<|endoftext|>"


@pytest.fixture(scope="module")
def gpt2(gpt2_vocabulary):
    return Tokenizer.load(gpt2_vocabulary)


@pytest.fixture(scope="module")
def small(bundled):
    return Tokenizer.load(bundled)


def test_a_batch_is_each_text_alone_and_in_order(small):
    texts = ["", "It's  so\n\n  nice", "漢字 🤗 né", "\0", "x" * 500, EOT]
    batch = small.encode_batch(texts, allowed_special="all")
    assert batch == [small.encode(text, allowed_special="all") for text in texts]
    assert list(map(small.decode, batch)) == texts and small.encode_batch([]) == []


class TestArrays:
    def test_the_smallest_type_that_holds_every_id(self, small, gpt2):
        ids = gpt2.encode_to_numpy(f"a{EOT}", allowed_special="all")
        assert ids.dtype == np.uint16 and ids.tolist() == [64, 50256]
        assert small.encode_to_numpy("").shape == (0,)

    def test_32_bits_for_more_tokens(self, gpt2_vocabulary):
        vocabulary = read_vocabulary(gpt2_vocabulary)
        vocabulary.ids["Ġhello"] = 1 << 16
        ids = Tokenizer(vocabulary).encode_to_numpy(" hello a")
        assert ids.dtype == np.uint32 and ids.tolist() == [1 << 16, 257]

    def test_decoding_arrays(self, gpt2):
        assert gpt2.decode(gpt2.encode_to_numpy("Hello world")) == "Hello world"
        with_padding = np.array([39, 60000], np.uint16)  # ids beyond the vocabulary have no text
        assert gpt2.decode(with_padding) == gpt2.decode([39]) == "H"


class TestOffsetsAndSteps:
    @settings(deadline=None, max_examples=200)
    @given(text=st.text())
    def test_steps_lead_from_bytes_to_the_ids(self, gpt2, text):
        plain = {"disallowed_special": ()}  # hypothesis finds "<|endoftext|>" in the code
        pieces = gpt2.trace_merges(text, **plain)
        assert "".join(piece.text for piece in pieces) == text
        assert [number for piece in pieces for number in piece.ids] == gpt2.encode(text, **plain)
        ids = gpt2.vocabulary.ids
        for piece in pieces:
            assert len(piece.steps[0].tokens) == len(piece.text.encode())
            assert tuple(ids[token] for token in piece.steps[-1].tokens) == piece.ids
            for before, after in zip(piece.steps, piece.steps[1:], strict=False):
                assert before.ranks[before.chosen] == min(r for r in before.ranks if r is not None)
                assert len(after.tokens) == len(before.tokens) - 1
        end = gpt2.trace_merges(EOT, allowed_special="all")[0]
        assert (end.text, end.steps, end.ids) == (EOT, (), (50256,))


class TestCaches:
    def test_bounded_in_bytes(self):
        cache, sizes = BoundedCache(lambda text: (len(text),), limit=10_000), []
        for number in range(1000):
            assert cache[f"{number:05}"] == (5,)
            assert cache.nbytes <= 10_000
            sizes.append(len(cache))
        assert 20 < max(sizes) < 60 and sizes.count(1) > 15
        assert cache["x" * 10_000] == (10_000,) and "x" * 10_000 not in cache

    def test_ids_stay_the_same_when_all_is_forgotten(
        self, gpt2, gpt2_vocabulary, data, monkeypatch
    ):
        monkeypatch.setattr(tokenizer_module, "_PIECE_CACHE_BYTES", 2000)
        monkeypatch.setattr(tokenizer_module, "_WORD_CACHE_BYTES", 2000)
        forgetful = Tokenizer.load(gpt2_vocabulary)
        text = (data / "text/udhr/eng.txt").read_text(encoding="utf-8")
        assert forgetful.encode(text) == gpt2.encode(text)

    def test_shared_by_threads(self, gpt2, gpt2_vocabulary, data, monkeypatch):
        monkeypatch.setattr(tokenizer_module, "_PIECE_CACHE_BYTES", 50_000)
        monkeypatch.setattr(tokenizer_module, "_WORD_CACHE_BYTES", 50_000)
        shared = Tokenizer.load(gpt2_vocabulary)
        names = ("eng", "fra", "rus", "cmn_hans")
        texts = [(data / f"text/udhr/{name}.txt").read_text(encoding="utf-8") for name in names]
        orders = [texts[n:] + texts[:n] for n in range(len(texts))]
        with ThreadPoolExecutor(len(orders)) as pool:
            results = list(pool.map(lambda order: list(map(shared.encode, order)), orders))
        assert results == [list(map(gpt2.encode, order)) for order in orders]


class TestSaving:
    def test_transformers_and_tokenizers_read_it(self, gpt2, data, tmp_path):
        from transformers import AutoTokenizer

        gpt2.save(tmp_path)
        names = {"vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json"}
        assert {path.name for path in tmp_path.iterdir()} == names
        theirs = AutoTokenizer.from_pretrained(tmp_path)
        rust = Rust.from_file(str(tmp_path / "tokenizer.json"))
        text = (data / "text/udhr/fra.txt").read_text(encoding="utf-8") + EOT
        ids = gpt2.encode(text, allowed_special="all")
        assert ids == rust.encode(text).ids == theirs(text)["input_ids"]
        assert theirs.eos_token == EOT and theirs.decode(ids) == text

    def test_the_files_are_openais(self, gpt2, gpt2_vocabulary, tmp_path):
        gpt2.save(tmp_path)
        merges = (gpt2_vocabulary / "merges.txt").read_bytes()
        assert (tmp_path / "merges.txt").read_bytes() == merges
        again = read_vocabulary(tmp_path)
        assert again == gpt2.vocabulary and again.can_ignore_merges
        (tmp_path / "tokenizer.json").unlink()
        assert read_vocabulary(tmp_path) == gpt2.vocabulary

    def test_what_transformers_writes(self, gpt2_vocabulary, data, tmp_path):
        from transformers import GPT2TokenizerFast

        files = (str(gpt2_vocabulary / name) for name in ("vocab.json", "merges.txt"))
        theirs = GPT2TokenizerFast(*files)
        theirs.add_special_tokens({"pad_token": "<|pad|>"})
        theirs.add_tokens(["gpt2np"])
        theirs.save_pretrained(tmp_path)
        ours = Tokenizer.load(tmp_path)
        text = (data / "text/udhr/eng.txt").read_text(encoding="utf-8")
        text += f" gpt2np<|pad|>{EOT} mygpt2npx"
        assert ours.encode(text, allowed_special="all") == theirs(text)["input_ids"]
        assert set(ours.special_tokens) == {EOT, "<|pad|>"}

    def test_nothing_is_lost_if_it_can_not_be_written(self, small, tmp_path):
        small.save(tmp_path)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        (tmp_path / "merges.txt").unlink()
        (tmp_path / "merges.txt").mkdir()
        with pytest.raises(OSError, match="merges"):
            small.save(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == set(before)
        assert (tmp_path / "vocab.json").read_bytes() == before["vocab.json"]

    def test_the_name_of_a_model(self, tmp_path, monkeypatch, bundled):
        monkeypatch.chdir(tmp_path)
        assert Tokenizer.load("bundled").vocabulary == Tokenizer.load(bundled).vocabulary
        with pytest.raises(ModelNotFoundError, match="nowhere"):
            Tokenizer.load("./nowhere/at/all")
        with pytest.raises(TokenizerError, match="there is no vocabulary at bundled"):
            Tokenizer.load(Path("bundled"))  # a path is never the name of a model
        (tmp_path / "bundled").mkdir()
        with pytest.raises(TokenizerError, match="bundled has no vocabulary"):
            Tokenizer.load("bundled")  # an existing folder takes precedence
