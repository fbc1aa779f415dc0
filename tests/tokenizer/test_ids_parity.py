"""Ids against tiktoken and tokenizers (Rust), live, with GPT-2's own vocabulary."""

import json
import random

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken.load import data_gym_to_mergeable_bpe_ranks
from tokenizers import ByteLevelBPETokenizer

from gpt2np import Tokenizer

PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@pytest.fixture(scope="module")
def ours(gpt2_vocabulary):
    return Tokenizer.from_folder(gpt2_vocabulary)


@pytest.fixture(scope="module")
def tiktoken_gpt2(gpt2_vocabulary):
    ranks = data_gym_to_mergeable_bpe_ranks(
        str(gpt2_vocabulary / "merges.txt"), str(gpt2_vocabulary / "vocab.json")
    )
    return tiktoken.Encoding(
        "gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256}
    )


@pytest.fixture(scope="module")
def rust_gpt2(gpt2_vocabulary):
    files = (str(gpt2_vocabulary / name) for name in ("vocab.json", "merges.txt"))
    return ByteLevelBPETokenizer(*files)


def test_the_worked_example(ours, tiktoken_gpt2):
    text = "GPT2 was created by OpenAI"
    assert ours.encode(text) == [38, 11571, 17, 373, 2727, 416, 4946, 20185]
    assert tiktoken_gpt2.encode(text) == [38, 11571, 17, 373, 2727, 416, 4946, 20185]


def all_texts(data):
    for path in sorted((data / "text").rglob("*.txt")):
        yield path.name, path.read_bytes().decode("utf-8")
    lines = (data / "text" / "edge-cases.jsonl").read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        yield f"edge case {number}", json.loads(line)


def test_every_text_both_ways(data, ours, tiktoken_gpt2, rust_gpt2, show):
    texts = tokens = 0
    for name, text in all_texts(data):
        ids = ours.encode(text, disallowed_special=())
        assert ids == tiktoken_gpt2.encode(text, disallowed_special=()), name
        assert ids == rust_gpt2.encode(text).ids, name
        assert ours.decode(ids) == text, name
        texts, tokens = texts + 1, tokens + len(ids)
    line = f"{texts} texts, {tokens} tokens: all ids equal, every text decodes to itself"
    show("tokenizer against tiktoken and tokenizers", line)
    assert texts > 6000


@settings(deadline=None, max_examples=500)
@given(text=st.text())
def test_any_text(ours, tiktoken_gpt2, text):
    ids = ours.encode(text, disallowed_special=())
    assert ids == tiktoken_gpt2.encode(text, disallowed_special=())
    assert ours.decode(ids) == text


@pytest.mark.parametrize(
    "text",
    ["", "0" * 50, "a" * 20_000, " " * 5000, "\n" * 999 + "x", "don't" * 500, "\ud83d", "a\udc00b"],
    ids=repr,
)
def test_hard_texts(ours, tiktoken_gpt2, text):
    assert ours.encode(text) == tiktoken_gpt2.encode(text)


def test_random_letters_without_any_space(ours, tiktoken_gpt2):
    text = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=50_000))
    assert ours.encode(text) == tiktoken_gpt2.encode(text)


def test_bytes_that_are_not_utf_8_decode_as_python_does(ours, data):
    single = {ours.decode_bytes([number]): number for number in range(256)}
    for line in (data / "text" / "invalid-utf8.hex.txt").read_text().split():
        content = bytes.fromhex(line)
        ids = [single[bytes([byte])] for byte in content]
        assert ours.decode_bytes(ids) == content
        assert ours.decode(ids) == content.decode("utf-8", "replace")


def test_bundled_vocabulary_against_tokenizers(bundled, data):
    files = (str(bundled / name) for name in ("vocab.json", "merges.txt"))
    rust, ours = ByteLevelBPETokenizer(*files), Tokenizer.from_folder(bundled)
    assert ours.vocab_size == 4096
    for name in ("fra", "cmn_hans", "rus", "eng"):
        text = (data / "text" / "udhr" / f"{name}.txt").read_text(encoding="utf-8")
        assert ours.encode(text) == rust.encode(text).ids
        assert ours.decode(ours.encode(text)) == text
