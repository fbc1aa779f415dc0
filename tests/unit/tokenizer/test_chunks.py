"""Cutting a text into chunks must never change its pieces."""

import random

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2np.tokenizer import chunks
from gpt2np.tokenizer.split import CL100K_PATTERN, GPT2_PATTERN, O200K_PATTERN, splitter

PATTERNS = sorted(chunks.BEFORE_WORDS)
ALPHABET = " \n\t\r\x0b\x1c\x85\u3000\x01\x02ab1.,'\"-sé漢\u0301"


def pieces_by_chunks(text, pattern):
    split = splitter((pattern,))
    pieces = []
    for block in chunks.blocks(text):
        keys = chunks.chunks(block, before_lines=pattern in chunks.BEFORE_LINES)
        texts = [block] if keys is None else map(chunks.text_of, keys)
        pieces += [piece for text in texts for piece in split(text)]
    return pieces


@pytest.mark.parametrize("size", [1, 5, 1 << 14])
@pytest.mark.parametrize("pattern", PATTERNS)
@settings(deadline=None, max_examples=1500)
@given(text=st.text(alphabet=ALPHABET, max_size=30))
def test_the_pieces_are_those_of_the_pattern(pattern, size, text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "_BLOCK", size)
        assert pieces_by_chunks(text, pattern) == splitter((pattern,))(text)


def test_ordinary_text_is_cut_at_every_space():
    """Otherwise the tests above could pass without any cut."""
    assert chunks.chunks("It is,  so\nfar", before_lines=True) == [
        "\x02It",
        "is,\x01\x01so",
        "\x02\nfar",
    ]
    assert len(chunks.chunks("one two three " * 1000 + "end", before_lines=False)) == 3001
    assert len(list(chunks.blocks("word " * 20_000))) == 7


def test_gpt2s_pattern_in_ascii():
    """ASCII texts are cut by the standard library's `re`, others by `regex`: alike."""
    rng = random.Random(0)
    characters = [chr(code) for code in range(128)] + list(" \n'stremdl") * 5
    find = regex.compile(GPT2_PATTERN).findall
    for _ in range(20_000):
        text = "".join(rng.choices(characters, k=20))
        assert splitter((GPT2_PATTERN,))(text) == find(text)


@pytest.mark.parametrize("pattern", [CL100K_PATTERN, O200K_PATTERN, r"\d+", "(a)|b", "x*", ""])
@given(text=st.text(alphabet="abx1 \né"))
def test_pieces_join_to_the_text(pattern, text):
    pieces = splitter((pattern,))(text)
    assert "".join(pieces) == text and "" not in pieces
