"""Escaped tokens, display widths, and tables of tokens and merges."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2np import Tokenizer
from gpt2np.tokenizer.display import Style, display_width, escape_token, merge_table, token_rows
from gpt2np.tokenizer.trace import MergeTrace


@pytest.mark.parametrize(
    "data, shown",
    [
        (b" was", " was"),
        (b"\n\r\t", r"\n\r\t"),
        (b"\x1b[31m", r"\x1b[31m"),
        ("\N{GRINNING FACE}".encode(), "\N{GRINNING FACE}"),
        ("\N{GRINNING FACE}".encode()[:2], r"\xf0\x9f"),
        ("caf\xe9".encode()[:-1], r"caf\xc3"),
        ("\u200b\xa0\u2028".encode(), r"\u200b\u00a0\u2028"),
        ("\U000e0041".encode(), r"\U000e0041"),
        ("\u0301a".encode(), "◌\u0301a"),
        (b"", ""),
    ],
)
def test_visible(data, shown):
    assert escape_token(data) == shown


@given(st.binary(max_size=20))
def test_nothing_reaches_the_terminal_that_it_would_obey(data):
    assert escape_token(data).isprintable()


def test_columns():
    widths = {"abc": 3, "日本": 4, "e\u0301": 1, "😀": 2, "ｱ": 1}
    assert {text: display_width(text) for text in widths} == widths


class TestRows:
    def rows(self, tokens, width=80):
        tokens = [token.encode() for token in tokens]
        return token_rows(tokens, range(9, 9 + len(tokens)), width, Style()).split("\n")

    def test_are_aligned(self):
        assert self.rows(["a", " long", "日", "b"]) == ["a│ long│日│b ", "9│10   │11│12"]

    def test_end_where_lines_and_the_terminal_do(self):
        rows = self.rows(["a", "\n", "b", " c", "\n\n", " word"], width=8)
        assert rows[::3] == ["a│\\n", "b │ c", "\\n\\n", " word"]
        assert max(map(len, rows)) <= 8

    def test_neighbors_differ_in_color(self):
        shown = token_rows([b"x"] * 12, range(12), 80, Style(color=True))
        colors = re.findall(r"48;5;(\d+)mx\x1b\[0m", shown)
        assert len(colors) == 12
        assert all(left != right for left, right in zip(colors, colors[1:], strict=False))


class TestMerges:
    def test_by_hand(self, gpt2_vocabulary):
        tokenizer = Tokenizer.load(gpt2_vocabulary)
        piece = tokenizer.trace_merges(" was")[0]
        assert merge_table(piece, tokenizer.vocabulary, Style()).split("\n") == [
            '" was" → 373',
            "  ␣    w      a    s",
            "   [10]  9991   36",
            "  ␣w      a    s",
            "     1826  [36]",
            "  ␣w     as",
            "    [117]",
            "  ␣was",
        ]

    def test_ranks_stand_between_their_tokens_even_if_these_are_wide(self, bundled):
        tokenizer = Tokenizer.load(bundled)
        _, above, below, *_ = merge_table(
            tokenizer.trace_merges("日本")[0], tokenizer.vocabulary, Style()
        ).split("\n")
        tokens = [match.span() for match in re.finditer(r"\S+", above)]
        ranks = [match.span() for match in re.finditer(r"\S+", below)]
        assert len(tokens) == len(ranks) + 1 == 6
        for rank, left, right in zip(ranks, tokens, tokens[1:], strict=False):
            assert left[1] <= rank[0] < rank[1] <= right[0]

    def test_what_is_not_merged(self, bundled):
        vocabulary = Tokenizer.load(bundled).vocabulary
        shown = merge_table(MergeTrace("<|x|>", (), (7,)), vocabulary, Style())
        assert shown.split("\n") == ['"<|x|>" → 7', "  taken whole: nothing to merge"]
