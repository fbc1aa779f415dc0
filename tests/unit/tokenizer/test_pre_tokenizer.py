"""Pieces of text, and that splitting into words first never changes them."""

import random

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2np.tokenizer import pre_tokenizer as module
from gpt2np.tokenizer.pre_tokenizer import GPT2_PATTERN, QWEN2_PATTERN, make_pre_tokenizer

PATTERNS = [GPT2_PATTERN, QWEN2_PATTERN]
ALPHABET = " \n\t\r\x0b\x1c\x85\u3000\x01\x02ab1.,'\"-sé漢\u0301"
TEXT = st.text(alphabet=ALPHABET, max_size=30)


def pieces_by_words(text, pattern):
    split = make_pre_tokenizer(pattern)
    pieces = []
    for chunk in module.iter_chunks(text):
        keys = module.split_words(chunk, at_newlines=pattern == GPT2_PATTERN)
        texts = [chunk] if keys is None else map(module.word_text, keys)
        pieces += [piece for text in texts for piece in split(text)]
    return pieces


@pytest.mark.parametrize("examples", [100, pytest.param(1500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("size", [1, 1 << 14])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_pieces_are_those_of_the_pattern(pattern, size, examples, monkeypatch):
    @settings(max_examples=examples)
    @given(text=TEXT)
    def check(text):
        assert pieces_by_words(text, pattern) == make_pre_tokenizer(pattern)(text)

    monkeypatch.setattr(module, "_CHUNK_SIZE", size)
    check()


def test_ordinary_text_is_cut_at_every_space():
    """Guards the tests above, which would pass without any split."""
    assert module.split_words("It is,  so\nfar", at_newlines=True) == [
        "\x02It",
        "is,\x01\x01so",
        "\x02\nfar",
    ]
    assert len(module.split_words("one two three " * 1000 + "end", at_newlines=False)) == 3001
    assert len(list(module.iter_chunks("word " * 20_000))) == 7


def test_gpt2s_pattern_in_ascii():
    """The pattern of `re` for ASCII text equals that of `regex`."""
    rng = random.Random(0)
    characters = [chr(code) for code in range(128)] + list(" \n'stremdl") * 5
    find = regex.compile(GPT2_PATTERN).findall
    for _ in range(5_000):
        text = "".join(rng.choices(characters, k=20))
        assert make_pre_tokenizer(GPT2_PATTERN)(text) == find(text)
