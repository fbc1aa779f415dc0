"""Special tokens, streaming decoder, merging, and damaged files."""

import random
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2np import InvalidArgumentError, Tokenizer, TokenizerError
from gpt2np.tokenizer import bpe, formats
from gpt2np.tokenizer.bpe import _merge_by_heap, _merge_by_scanning, merge_pairs
from gpt2np.tokenizer.formats import read_vocabulary
from gpt2np.tokenizer.trace import merge_steps
from gpt2np.tokenizer.vocabulary import CHAR_TO_BYTE, bytes_to_chars, chars_to_bytes

EOT = "<|endoftext|>"


@pytest.fixture(scope="module")
def bundled_tokenizer(bundled):
    return Tokenizer.load(bundled)


class TestSpecialTokens:
    def test_in_a_text_they_are_an_error_by_default_or_plain_text(self, bundled_tokenizer):
        with pytest.raises(InvalidArgumentError, match=r"special token <\|endoftext\|>; pass"):
            bundled_tokenizer.encode(f"one{EOT}two")
        ids = bundled_tokenizer.encode(f"one{EOT}two", disallowed_special=())
        assert bundled_tokenizer.eos_token_id not in ids
        assert bundled_tokenizer.decode(ids) == f"one{EOT}two"

    @pytest.mark.parametrize("allowed", ["all", {EOT}, [EOT]])
    def test_or_themselves_if_asked_for(self, bundled_tokenizer, allowed):
        one, two = bundled_tokenizer.encode("one"), bundled_tokenizer.encode("two")
        end = bundled_tokenizer.eos_token_id
        ids = bundled_tokenizer.encode(f"{EOT}one{EOT}{EOT}two", allowed_special=allowed)
        assert ids == [end, *one, end, end, *two]
        assert bundled_tokenizer.decode(ids) == f"{EOT}one{EOT}{EOT}two"

    def test_unknown_ones_are_named(self, bundled_tokenizer):
        with pytest.raises(InvalidArgumentError, match=r"'<\|pad\|>' is not a special token"):
            bundled_tokenizer.encode("x", allowed_special={"<|pad|>"})


class TestStreamingDecoder:
    @settings(deadline=None, max_examples=100)
    @given(ids=st.lists(st.integers(0, 4095), max_size=40))
    def test_pieces_join_to_the_whole_and_hold_no_half_character(self, bundled_tokenizer, ids):
        decoder = bundled_tokenizer.streaming_decoder()
        pieces = [decoder.push(number) for number in ids]
        assert "".join([*pieces, decoder.finish()]) == bundled_tokenizer.decode(ids)

    def test_the_rest_of_a_broken_character_is_flushed(self, bundled_tokenizer):
        decoder = bundled_tokenizer.streaming_decoder()
        half = bundled_tokenizer.encode("中")[:1]
        assert (decoder.push(*half), decoder.finish()) == ("", "\N{REPLACEMENT CHARACTER}")
        with pytest.raises(UnicodeDecodeError):
            bundled_tokenizer.decode(half, errors="strict")


RANKS = {"b c": 0, "a bc": 1, "a b": 2, "a a": 3, "aa aa": 4}


class TestMerge:
    @pytest.mark.parametrize(
        ("tokens", "merged"),
        [
            ("", []),
            ("a", ["a"]),
            ("ab", ["ab"]),
            ("abc", ["abc"]),  # b+c has the lower rank, and only so a+bc becomes possible
            ("aaa", ["aa", "a"]),  # of two overlapping pairs the left one
            ("aaaaa", ["aaaa", "a"]),
        ],
    )
    def test_by_hand(self, tokens, merged):
        assert merge_pairs(tokens, RANKS) == merged

    @pytest.mark.parametrize(
        ("merge", "chunk", "longest"),
        [
            *((merge, 64, 40) for merge in (_merge_by_scanning, _merge_by_heap)),
            *((merge_pairs, chunk, 150) for chunk in (1, 3, 16, 64)),
        ],
    )
    def test_against_the_definition(self, merge, chunk, longest, monkeypatch):
        """`merge_steps` is the definition: find the best pair, merge it, start again."""
        monkeypatch.setattr(bpe, "_CHUNK", chunk)
        rng = random.Random(chunk)
        for _ in range(100):
            ranks = any_ranks(rng)
            text = "".join(rng.choices("abc", k=rng.randrange(longest)))
            assert merge(text, ranks) == list(merge_steps(list(text), ranks)[-1].tokens)

    def test_the_end_of_a_long_text_may_change_all_tokens(self):
        """Of the pairs in a row of characters, the last one has the lowest rank."""
        characters = [chr(0x4E00 + n) for n in range(20_001)]
        pairs = [f"{left} {right}" for left, right in pairwise(characters)]
        ranks = {pair: rank for rank, pair in enumerate(reversed(pairs))}
        for length in (20_000, 20_001):
            tokens = merge_pairs("".join(characters[:length]), ranks)
            assert [*map(len, tokens)] == [1] * (length % 2) + [2] * (length // 2)


def any_ranks(rng):
    """Return merges in random order, even a token before its parts, as no trainer would."""
    tokens = ["a", "b", "c"]
    pairs = []
    for _ in range(rng.randrange(1, 30)):
        left, right = rng.choice(tokens), rng.choice(tokens)
        if len(left + right) < 9:
            tokens.append(left + right)
            pairs.append(f"{left} {right}")
    rng.shuffle(pairs)
    return {pair: rank for rank, pair in enumerate(pairs)}


def test_the_alphabet_is_a_bijection_of_printable_characters():
    data = bytes(range(256))
    assert chars_to_bytes(bytes_to_chars(data)) == data
    assert len(CHAR_TO_BYTE) == 256
    assert all(c.isprintable() and not c.isspace() for c in CHAR_TO_BYTE)
    assert bytes_to_chars(b" hi\n") == "ĠhiĊ"


def test_id_without_a_token_decodes_to_no_text(bundled_tokenizer):
    """A model with padding has more ids than tokens; decoding its output raised an error."""
    assert bundled_tokenizer.decode([1, 4096, 50_000]) == bundled_tokenizer.decode([1])
    assert bundled_tokenizer.decode_bytes(iter([4096])) == b""


@pytest.mark.parametrize("wrong", [-1, "1", None])
def test_id_that_is_no_integer_from_0_is_an_error(bundled_tokenizer, wrong):
    with pytest.raises(InvalidArgumentError, match="it must be integers from 0"):
        bundled_tokenizer.decode([1, wrong])


class TestFiles:
    @pytest.fixture
    def files(self, bundled, tmp_path):
        for name in ("vocab.json", "merges.txt"):
            (tmp_path / name).write_bytes((bundled / name).read_bytes())
        return tmp_path

    def test_openais_names(self, files, bundled_tokenizer):
        (files / "vocab.json").rename(files / "encoder.json")
        (files / "merges.txt").rename(files / "vocab.bpe")
        tokenizer = Tokenizer.load(files)
        assert tokenizer.encode("Once upon") == bundled_tokenizer.encode("Once upon")

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("vocab.json", "[1]", "expected a JSON object"),
            ("vocab.json", '{"a": 0, "b": 0}', "same id to two tokens"),
            ("vocab.json", '{"a": 0}', "255 of the 256 single-byte tokens are missing"),
            ("merges.txt", "a b\nnonsense\n", "line 2: expected two tokens"),
            ("merges.txt", "qqq zzz\n", "has no token 'qqqzzz'"),
            ("merges.txt", b"\xff\xfe", "not UTF-8 at byte 0"),
            ("merges.txt", "#version: 0.2\n", "looks truncated: no merge makes 3839 of the tokens"),
            ("merges.txt", "x y " * 9999, r"found '.{,60}\.\.\..{,60}'$"),
            ("vocab.json", '{"": 0}', "a token is empty or not Unicode text"),
        ],
    )
    def test_damaged_files_are_named(self, files, name, content, message):
        data = content if isinstance(content, bytes) else content.encode()
        (files / name).write_bytes(data)
        with pytest.raises(TokenizerError, match=message) as error:
            Tokenizer.load(files)
        assert str(files / name) in str(error.value) and "\n" not in str(error.value)

    def test_missing_files(self, tmp_path):
        with pytest.raises(TokenizerError, match=r"no vocabulary: expected tokenizer\.json or vo"):
            Tokenizer.load(tmp_path)


class TestOpenAIsFiles:
    """Files known by their checksum take a faster path, with the same result."""

    @pytest.fixture(scope="class")
    def known(self, gpt2_vocabulary):
        return read_vocabulary(gpt2_vocabulary)

    def test_the_same_as_read_in_full(self, known, gpt2_vocabulary, monkeypatch):
        monkeypatch.setattr(formats, "_OPENAI_CRC32", (0, 0))
        read = read_vocabulary(gpt2_vocabulary)
        assert read == known
        assert known.can_ignore_merges and read.can_ignore_merges

    def test_one_changed_merge_is_noticed(self, gpt2_vocabulary, tmp_path):
        for name in ("vocab.json", "merges.txt"):
            (tmp_path / name).write_bytes((gpt2_vocabulary / name).read_bytes())
        merges = (tmp_path / "merges.txt").read_text(encoding="utf-8").split("\n")
        merges[1], merges[2] = merges[2], merges[1]
        (tmp_path / "merges.txt").write_text("\n".join(merges), encoding="utf-8")
        assert not read_vocabulary(tmp_path).can_ignore_merges


def test_the_folder_one_is_in(bundled, monkeypatch):
    monkeypatch.chdir(bundled)
    assert Tokenizer.load(".").encode("a b") == Tokenizer.load(bundled).encode("a b")
    with pytest.raises(TokenizerError, match="is empty"):
        Tokenizer.load("")


@pytest.mark.parametrize("text", [" " * 40_000, "qz" * 20_000])
def test_memory_of_one_long_piece(text):
    """One piece once took 100 to 180 bytes a character (100 MB of spaces 18 GB)."""
    tokenizer = Tokenizer.load("bundled")
    tracemalloc.start()
    try:
        tokenizer.encode(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 60 * len(text)


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "tokenizer.json"])
def test_the_size_of_a_file_is_checked_before_it_is_read(tmp_path, bundled, name):
    if name != "tokenizer.json":
        for file in ("vocab.json", "merges.txt"):
            (tmp_path / file).write_bytes((bundled / file).read_bytes())
    with (tmp_path / name).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(TokenizerError, match=r"1,099,511,627,776 bytes; expected at most"):
        read_vocabulary(tmp_path)
