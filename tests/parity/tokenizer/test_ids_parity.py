"""Ids equal those of tiktoken and tokenizers (Rust), live, with GPT-2's vocabulary."""

import json
import random
from itertools import accumulate, islice

import pytest
import tiktoken
from helpers.texts import any_characters
from tiktoken.load import data_gym_to_mergeable_bpe_ranks
from tokenizers import ByteLevelBPETokenizer
from tokenizers import Tokenizer as Rust
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from gpt2np import Tokenizer
from gpt2np.tokenizer.pre_tokenizer import GPT2_PATTERN, make_pre_tokenizer
from gpt2np.tokenizer.vocabulary import Vocabulary

PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@pytest.fixture(scope="module")
def ours(gpt2_vocabulary):
    return Tokenizer.load(gpt2_vocabulary)


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
    for folder in ("text", "eval"):
        for path in sorted((data / folder).rglob("*.*")):
            if path.suffix in (".txt", ".raw") or path.name.startswith("lambada"):
                yield path.name, path.read_bytes().decode("utf-8")
    lines = (data / "text" / "edge-cases.jsonl").read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        yield f"edge case {number}", json.loads(line)
    stories = (data / "stories" / "train.txt").read_text(encoding="utf-8").split("<|endoftext|>")
    for number, story in enumerate(stories[::25]):
        yield f"story {25 * number}", story


def check_offsets(ours, text, expected):
    """Check ids, decoding and offsets against `expected`, an Encoding of tokenizers."""
    spans = ours.offsets(text, disallowed_special=())
    assert [span.id for span in spans] == expected.ids, ascii(text[:100])
    assert [(span.start, span.end) for span in spans] == expected.offsets, ascii(text[:100])
    assert ours.decode(expected.ids) == text
    starts, ends = ([getattr(s, f"byte_{name}") for s in spans] for name in ("start", "end"))
    assert [*starts, len(text.encode())] == [0, *ends]  # the spans cover the text without gaps


@pytest.mark.parametrize(
    ("step", "most"), [(16, 2_000), pytest.param(1, None, marks=pytest.mark.slow)]
)
def test_every_text_both_ways(data, ours, tiktoken_gpt2, rust_gpt2, step, most):
    """Compare ids and offsets: of the start of every 16th text, with `-m slow` of all."""
    texts = 0
    for name, whole_text in islice(all_texts(data), 0, None, step):
        text = whole_text[:most]
        ids = ours.encode(text, disallowed_special=())
        assert ids == tiktoken_gpt2.encode(text, disallowed_special=()), name
        check_offsets(ours, text, rust_gpt2.encode(text))
        texts += 1
    assert texts > 6000 // step


def strange(rng):
    """Return a short text of random Unicode, or of characters that are easily split wrongly."""
    kind, length = rng.random(), rng.randrange(20)
    if kind < 0.5:
        return any_characters(rng, length)
    if kind < 0.7:
        return "".join(chr(rng.randrange(0x3100)) for _ in range(length))
    return "".join(rng.choices(" \n\t\r\x0b\x1c\x85\xa0\u3000ab1.'!é漢🤗\x01\x02sdmtl", k=length))


@pytest.mark.parametrize("count", [1_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_random_texts(ours, tiktoken_gpt2, rust_gpt2, count):
    rng = random.Random(2026)
    texts = [strange(rng) for _ in range(count)]
    for text, expected in zip(texts, rust_gpt2.encode_batch(texts), strict=True):
        ids = ours.encode(text)
        assert ids == tiktoken_gpt2.encode_ordinary(text), ascii(text)
        check_offsets(ours, text, expected)


@pytest.mark.parametrize(
    ("step", "high_step"), [(20, 1280), pytest.param(1, 1, marks=pytest.mark.slow)]
)
def test_every_character(ours, tiktoken_gpt2, step, high_step):
    """Each character of Unicode after a letter, a digit and a sign: which does it belong to?

    The ids tell that of many characters, the pieces of all. Every 20th, and from 0x20000 on, where
    all assigned ones are ideographs but for a few, every 1280th; with `-m slow` all.
    """
    codes = [code for code in range(0, 0x20000, step) if not 0xD800 <= code < 0xE000]
    codes += range(0x20000, 0x110000, high_step)
    rust, split = ByteLevel(add_prefix_space=False), make_pre_tokenizer(GPT2_PATTERN)
    for start in range(0, len(codes), 1000):
        text = "".join(f"a{chr(c)}1{chr(c)}.{chr(c)} {chr(c)}" for c in codes[start : start + 1000])
        assert ours.encode(text) == tiktoken_gpt2.encode_ordinary(text)
        ends = [end for _, (_, end) in rust.pre_tokenize_str(text)]
        assert [*accumulate(map(len, split(text)))] == ends


# What tiktoken's own tests look at (tests/test_encoding.py, test_offsets.py), and more of the kind.
HARD = [
    *("", " ", "\0", "\0" * 9, "0" * 50, "rer", "'rer", "today\n ", "today\n \n", "today\n  \n"),
    *(" " * n for n in (1, 2, 3, 15, 1000)),
    *("\ud83d\udc4d", "\ud83d", "a\udc00b", "\ud83d\ud83d\udc4d", "\udc4d\ud83d"),
    *("hello <|endoftext|", "we'll'd", "请考试我的软件！12345", "نعم بعد", "e\u0301", "\U0010ffff"),
    *("\n" * 999 + "x", "don't" * 500, " x" * 10_000, "\r\n" * 500, "\t \t" * 300),
    *("a\u200bb", "\ufeffbom", "\uffff"),
]


@pytest.mark.parametrize("text", HARD, ids=lambda text: ascii(text[:12]))
def test_hard_texts(ours, tiktoken_gpt2, text):
    assert ours.encode(text) == tiktoken_gpt2.encode(text)
    with_end = ours.encode(f"{text}<|endoftext|>", allowed_special="all")
    assert with_end == tiktoken_gpt2.encode(f"{text}<|endoftext|>", allowed_special="all")


@pytest.mark.parametrize("count", [50_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("part", ["^", "0", "a", "'s", " ", "\n", "\t "])
def test_many_of_one(ours, rust_gpt2, part, count):
    """Against tokenizers: tiktoken 0.14 gives up, "Max stack size exceeded for backtracking"."""
    assert ours.encode(part * count) == rust_gpt2.encode(part * count).ids


@pytest.mark.parametrize("count", [100, pytest.param(2_000, marks=pytest.mark.slow)])
def test_long_texts_with_merges_that_no_trainer_would_learn(count):
    """A piece may contain or equal a token that no merge makes: it stays in smaller tokens."""
    rng = random.Random(0)
    for _ in range(count):
        tokens, merges = list("abcde"), {}
        while len(merges) < 30:
            left, right = rng.choices(tokens, k=2)
            if len(left + right) < 12:
                merges[left, right] = None
                tokens.append(left + right)
        order = rng.sample(list(merges), len(merges))
        unmade = ["".join(rng.choices("abcde", k=3)) for _ in range(20)]
        ids = {token: number for number, token in enumerate(dict.fromkeys([*tokens, *unmade]))}
        rust = Rust(BPE(ids, order))
        ranks = {f"{left} {right}": rank for rank, (left, right) in enumerate(order)}
        ours = Tokenizer(Vocabulary(ids, ranks, pattern=None))
        for text in [*unmade, *("".join(rng.choices("abcde", k=k)) for k in (20, 70, 500))]:
            assert ours.encode(text) == rust.encode(text).ids, (text, order)


def test_bytes_that_are_not_utf_8_decode_as_python_does(ours, data):
    single = {ours.decode_bytes([number]): number for number in range(256)}
    for line in (data / "text" / "invalid-utf8.hex.txt").read_text().split():
        content = bytes.fromhex(line)
        ids = [single[bytes([byte])] for byte in content]
        assert ours.decode_bytes(ids) == content
        assert ours.decode(ids) == content.decode("utf-8", "replace")
