"""Canonical covers: against all token sequences and all texts, on small random vocabularies."""

import random

import pytest
from helpers.random_vocabularies import canonical_covers, random_tokenizer

from gpt2np import InvalidArgumentError, Tokenizer
from gpt2np.tokenizer.pre_tokenizer import O200K_PATTERN, PATTERN_NAMES
from gpt2np.tokenizer.vocabulary import Vocabulary, bytes_to_chars

PATTERNS = [(pattern,) for pattern in PATTERN_NAMES.values()] + [(), (r"\w+|\s",)]
ALPHABETS = ["ab !", "ab 's!", "a 1\n!", "ab", "e'lrs!", "aA 's1!", " \n\ta!", "123a!"]
N_CASES = [120, pytest.param(20_000, marks=pytest.mark.slow)]


def covers_of(tokenizer, text):
    covers = [(*b.ids, int(i)) for b in tokenizer.find_covers(text) for i in b.last]
    assert len(set(covers)) == len(covers)
    return set(covers)


@pytest.mark.parametrize("n_cases", N_CASES)
def test_covers_are_the_beginnings_of_all_encodings(n_cases):
    rng = random.Random(n_cases)
    for _ in range(n_cases):
        alphabet = rng.choice(ALPHABETS)
        tokenizer = random_tokenizer(rng, alphabet, rng.randint(0, 14), rng.choice(PATTERNS))
        text = "".join(rng.choices(alphabet, k=rng.randint(1, 5))).encode()
        found, expected = covers_of(tokenizer, text), canonical_covers(tokenizer, text, alphabet)
        if tokenizer.vocabulary.patterns == (O200K_PATTERN,) and "'" in alphabet:
            # "s'" may begin a piece, as in "s'll"; but this alphabet may lack the letters for it.
            assert found >= expected
        else:
            assert found == expected


@pytest.mark.parametrize("n_cases", N_CASES)
def test_covers_of_texts_that_end_within_a_character(n_cases):
    """A token that ends within a character may have no character of this alphabet to follow."""
    rng, n_more = random.Random(n_cases), 0
    for _ in range(n_cases):
        alphabet = rng.choice(["aéè!", "aé日旦", "日 ,\u3000"])
        tokenizer = random_tokenizer(rng, alphabet, rng.randint(0, 12), rng.choice(PATTERNS))
        text = "".join(rng.choices(alphabet, k=rng.randint(1, 3))).encode()
        text = text[: rng.randint(1, len(text))]
        found, expected = covers_of(tokenizer, text), canonical_covers(tokenizer, text, alphabet)
        assert found >= expected
        for ids in found - expected:
            with pytest.raises(UnicodeDecodeError, match="unexpected end of data"):
                tokenizer.decode(ids, "strict")
        n_more += len(found - expected)
    assert n_more < n_cases


def test_branches_name_the_cover_that_ends_with_the_text(bundled):
    tokenizer = Tokenizer.load(bundled)
    for text in ["The fox ", "The fo", "don'", "a  ", "日本"]:
        whole = tuple(tokenizer.encode(text))
        branches = tokenizer.find_covers(text.encode())
        found = [(*b.ids, b.whole) for b in branches if b.whole >= 0]
        assert whole in found
        for branch in branches:
            for token_id in branch.last.tolist():
                token = tokenizer.vocabulary.token_bytes[token_id]
                n_behind = len(token) - branch.n_covered
                assert (n_behind == 0) == (token_id == branch.whole)
                assert text.encode().endswith(token[: branch.n_covered])


def test_what_follows_decides_where_pieces_begin(gpt2_vocabulary):
    tokenizer = Tokenizer.load(gpt2_vocabulary)

    def texts(text):
        return {tuple(tokenizer.token_texts(ids)) for ids in covers_of(tokenizer, text)}

    assert ("don", "'ll") in texts(b"don'l") and ("don", "'", "lama") not in texts(b"don'l")
    assert ("don", "'", "ll") not in texts(b"don'l")
    assert {("a", " ", " b"), ("a", " ", " ")} <= texts(b"a  ")
    assert ("x", "\n\n") in texts(b"x\n") and ("x", "\n", "\n") not in texts(b"x\n")
    assert (" ", "ers") in texts(b" e") and (" ", "en") not in texts(b" e")


def test_what_must_follow_decides_which_tokens_can_come():
    """After "'r", only "'re" is one piece, and its tokens are "'" and "re"."""
    ids = {token: i for i, token in enumerate([*"'elr", "re", "'r"])}
    merges = {"r e": 0, "' r": 1}
    tokenizer = Tokenizer(Vocabulary(ids, merges, (), (PATTERN_NAMES["gpt2"],)))
    texts = {tuple(tokenizer.token_texts(cover)) for cover in covers_of(tokenizer, b"l'r")}
    assert texts == {("l", "'", "r"), ("l", "'", "re")}


def test_a_text_that_is_not_utf8(gpt2_vocabulary):
    tokenizer = Tokenizer.load(gpt2_vocabulary)
    for text in [b"\xff", b"a\xffb", b"caf\xc3", b"\xe6", b"\xf0", b"\xf0\x9f", b"\x80\x80 a"]:
        plain = tokenizer.encode(text.decode("utf-8", "surrogateescape"), errors="surrogateescape")
        assert tuple(plain) in covers_of(tokenizer, text)


@pytest.mark.parametrize("change", [{"nfc": True}, {"add_prefix_space": True}])
def test_tokenizers_that_change_texts_are_refused(change):
    ids = {bytes_to_chars(bytes([byte])): byte for byte in range(256)}
    with pytest.raises(InvalidArgumentError, match="boundary 'text' needs a byte-level tokenizer"):
        Tokenizer(Vocabulary(ids, {}, **change)).find_covers(b"a")
