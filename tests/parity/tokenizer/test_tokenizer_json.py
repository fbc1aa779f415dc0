"""`tokenizer.json` files that `tokenizers` itself trains and writes: the same ids and offsets."""

import json
import pickle
import random
from dataclasses import replace
from functools import cache, reduce
from operator import getitem
from unicodedata import is_normalized

import pytest
from helpers.texts import any_characters
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Rust

from gpt2np import InvalidArgumentError, Tokenizer, TokenizerError
from gpt2np.tokenizer.normalizer import split_added
from gpt2np.tokenizer.pre_tokenizer import GPT2_PATTERN, QWEN2_PATTERN
from gpt2np.tokenizer.unicode16 import mask_newer_characters
from gpt2np.tokenizer.vocabulary import AddedToken as AddedTokenOfOurs

LANGUAGES = ("eng", "fra", "vie", "rus", "cmn_hans", "kor", "hin", "arb", "tha", "deu_1901")
WHITE = " \n\t\r\x0b\x0c\x1c\x85\xa0\u2003\u3000"


def split(pattern, **options):
    return pre_tokenizers.Split(Regex(pattern), **{"behavior": "isolated"} | options)


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
PRE_TOKENIZERS = {
    "gpt2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "qwen": pre_tokenizers.Sequence([split(QWEN2_PATTERN), BYTES]),
    "no pattern": BYTES,
    "characters": None,
    "characters in words": split(GPT2_PATTERN),
}
NFC = {"qwen"}
FLAGS = ("single_word", "normalized")


@pytest.fixture(scope="module")
def texts(data):
    udhr = [(data / "text/udhr" / f"{name}.txt").read_text(encoding="utf-8") for name in LANGUAGES]
    edges = (data / "text/edge-cases.jsonl").read_text(encoding="utf-8").splitlines()
    code = (data / "text/UTF-8-demo.txt").read_text(encoding="utf-8")
    return [text[:6000] for text in udhr] + [code] + [json.loads(line) for line in edges[::7]]


@pytest.fixture(scope="module")
def train(texts):
    """train(kind): a new tokenizer of 1,500 tokens, which `tokenizers` trains once per kind."""
    trained = cache(lambda kind: trained_json(kind, texts))
    return lambda kind: Rust.from_str(trained(kind))


def trained_json(kind, texts):
    characters = kind.startswith("characters")
    rust = Rust(models.BPE(unk_token="<unk>" if characters else None))
    rust.pre_tokenizer = PRE_TOKENIZERS[kind]
    rust.decoder = decoders.Fuse() if characters else decoders.ByteLevel()
    rust.normalizer = normalizers.NFC() if kind in NFC else None
    alphabet = [] if characters else pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        show_progress=False,
        initial_alphabet=alphabet,
        special_tokens=["<|endoftext|>", "<unk>"],
        max_token_length=20,
    )
    rust.train_from_iterator([text[:3000] for text in texts[:8]], trainer)
    return rust.to_str()


def strange(rng):
    """Return a short text of characters that are likely to reveal faults."""
    kind, length = rng.random(), rng.randrange(25)
    if kind < 0.3:
        return any_characters(rng, length)
    if kind < 0.6:
        return "".join(rng.choices(WHITE + "ab1.'!éſK漢🤗\x01\x02sdmtlAB²", k=length))
    if kind < 0.8:
        return "".join(
            rng.choices("eaou\u0301\u0308\u0323\u0345q\u1100\u1161\u11a8각é\u212b ", k=length)
        )
    return " ".join(
        rng.choices(["don't", "WE'LL", "a.", "[X]", "abc", "\n", "", "x1y22"], k=length)
    )


@pytest.mark.parametrize("step", [40, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", PRE_TOKENIZERS)
def test_ids_and_offsets(kind, step, train, texts, tmp_path):
    """Of every fortieth text (`-m slow`: of all)."""
    rust = train(kind)
    rust.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.load(tmp_path)
    rng = random.Random(kind)
    for text in [*texts, *(strange(rng) for _ in range(3000))][::step]:
        expected = rust.encode(text)
        assert ours.encode(text, allowed_special="all") == expected.ids, text
        if kind in NFC and not is_normalized("NFC", text):
            with pytest.raises(InvalidArgumentError, match="changes the text to Unicode form NFC"):
                ours.offsets(text, allowed_special="all")
        else:
            spans = ours.offsets(text, allowed_special="all")
            assert [(span.start, span.end) for span in spans] == expected.offsets, text
            assert [span.id for span in spans] == expected.ids
        assert ours.decode(expected.ids) == rust.decode(expected.ids, skip_special_tokens=False)


@pytest.mark.parametrize("kind", PRE_TOKENIZERS)
def test_saved_and_read_again_by_both(kind, train, texts, tmp_path):
    rust = train(kind)
    rust.add_tokens([AddedToken("abc", single_word=True)])
    rust.save(str(tmp_path / "tokenizer.json"))
    Tokenizer.load(tmp_path).save(tmp_path / "saved")
    theirs = Rust.from_file(str(tmp_path / "saved" / "tokenizer.json"))
    ours = Tokenizer.load(tmp_path / "saved")
    rng = random.Random(1)
    for text in [*texts[::15], *(strange(rng) for _ in range(100))]:
        expected = rust.encode(text).ids
        assert theirs.encode(text).ids == expected
        assert ours.encode(text, allowed_special="all") == expected


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("count", [150, pytest.param(400, marks=pytest.mark.slow)])
def test_added_tokens(special, count, train, texts, tmp_path):
    """Test every combination of flags, next to words, white space and punctuation."""
    rng = random.Random(0)
    for number in range(4):
        flags = {flag: bool(number >> bit & 1) for bit, flag in enumerate(FLAGS)}
        rust = train("qwen")
        tokens = [AddedToken(token, **flags) for token in ("<x>", "<x>y", "né", "ne\u0301e", " z")]
        (rust.add_special_tokens if special else rust.add_tokens)(tokens)
        rust.save(str(tmp_path / "tokenizer.json"))
        ours = Tokenizer.load(tmp_path)
        words = ["<x>", "né", "ne\u0301", *"ye \n\x1cz_1.漢-"]
        for _ in range(count):
            text = "".join(rng.choices(words, k=rng.randrange(9)))
            expected = rust.encode(text)
            assert ours.encode(text, allowed_special="all") == expected.ids, (flags, text)
            if is_normalized("NFC", text):
                spans = ours.offsets(text, allowed_special="all")
                assert [(span.start, span.end) for span in spans] == expected.offsets, (flags, text)


@pytest.mark.parametrize("step", [97, pytest.param(1, marks=pytest.mark.slow)])
def test_single_word_token_beside_any_character(step):
    """Characters newer than Unicode 16 are no part of a word: 17,559 gave other ids."""
    rust = Rust(models.BPE({"\u0100": 0}, []))
    rust.add_tokens([AddedToken("<x>", single_word=True, normalized=False)])
    added = AddedTokenOfOurs("<x>", 1, special=False, single_word=True)
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    masked = mask_newer_characters("".join(map(chr, codes)))
    newer = [code for code, found in zip(codes, masked, strict=True) if found != chr(code)]
    assert len(newer) > 17_000
    texts = [chr(code) + "<x>" for code in {*codes[::step], *newer[:: step // 10 or 1]}]
    for text, expected in zip(texts, rust.encode_batch(texts), strict=True):
        found = [token_id for _, token_id in split_added(text, [added])]
        assert (1 in found) == (1 in expected.ids), ascii(text)


BOS = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}]}

MODEL, SPLIT_STEP = ["model"], ["pre_tokenizer", "pretokenizers", 0]
REFUSED = [
    ([*MODEL, "type"], "WordPiece", "does not support the model 'WordPiece'"),
    ([*MODEL, "dropout"], 0.1, "does not support the BPE model's dropout = 0.1"),
    ([*MODEL, "ignore_merges"], True, "does not support the BPE model's ignore_merg"),
    ([*MODEL, "merges"], [7], "merge 0 is 7; expected two tokens"),
    ([*MODEL, "merges"], [["a", 7]], r"merge 0 is \['a', 7\]; expected two tokens"),
    ([*MODEL, "merges"], [["q", "qqq"]], "no token for the merge 'q qqq'"),
    ([*MODEL, "vocab", "a"], "b", "an id must be a whole number"),
    ([*MODEL, "vocab", "a"], 3, "same id to two tokens"),
    ([*MODEL, "vocab"], {"a": 1}, "no token for the merge"),
    (MODEL, None, 'it has no "model" with a vocabulary'),
    (["normalizer"], {"type": "Lowercase"}, "does not support the normalizer 'Lowercase'"),
    (["pre_tokenizer"], {"type": "Metaspace"}, "the pre-tokenizer 'Metaspace'"),
    (["pre_tokenizer"], {}, "is damaged"),
    ([*SPLIT_STEP, "behavior"], "Removed", "'Removed'"),
    ([*SPLIT_STEP, "pattern"], {"Regex": "("}, r"'Regex': '\('}.*; only GPT-2's and Qwen's"),
    (["post_processor"], BOS, "a post-processor that adds tokens"),
    (["decoder"], {"type": "WordPiece"}, "the decoder 'WordPiece'"),
    (["added_tokens", 0, "id"], "0", "an id must be a whole number"),
    (["added_tokens", 0, "id"], 7, "id 7, but transformers gives it 0"),
]


@pytest.mark.parametrize(("path", "value", "message"), REFUSED)
def test_what_is_not_done_is_refused_by_name(path, value, message, train, tmp_path):
    content = json.loads(train("qwen").to_str())
    *outer, last = path
    reduce(getitem, outer, content)[last] = value
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(TokenizerError, match=message) as error:
        Tokenizer.load(tmp_path)
    assert str(file) in str(error.value) and "\n" not in str(error.value)


def test_gpt2s_faster_merges_are_not_for_changed_files(gpt2_vocabulary, tmp_path):
    """A token that no merge makes; a merge that comes twice."""
    Tokenizer.load(gpt2_vocabulary).save(tmp_path)
    path = tmp_path / "tokenizer.json"
    before = path.read_text(encoding="utf-8")
    one, two = json.loads(before), json.loads(before)
    one["model"]["vocab"]["Ġzyxwv"] = 50257
    two["model"]["merges"].append(two["model"]["merges"][0])
    for content in (one, two):
        path.write_text(json.dumps(content), encoding="utf-8")
        ours, theirs = Tokenizer.load(path), Rust.from_file(str(path))
        assert ours.encode("a zyxwv the test") == theirs.encode("a zyxwv the test").ids
        assert not ours.vocabulary.can_ignore_merges


def test_equal_vocabularies_have_one_fingerprint(bundled, tmp_path):
    """A folder with vocab.json and its own tokenizer.json had two."""
    tokenizer = Tokenizer.load(bundled)
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    reversed_ids = dict(reversed(tokenizer.vocabulary.ids.items()))
    shuffled = Tokenizer(replace(tokenizer.vocabulary, ids=reversed_ids))
    assert again.vocabulary == tokenizer.vocabulary == shuffled.vocabulary
    assert again.fingerprint == tokenizer.fingerprint == shuffled.fingerprint
    other = Tokenizer(replace(tokenizer.vocabulary, nfc=True))
    assert other.fingerprint != tokenizer.fingerprint


def test_added_tokens_of_every_kind_are_saved_and_decoded(bundled, tmp_path):
    """With a space, of one character, outside the byte alphabet, and as an ordinary token."""
    own = Tokenizer.load(bundled)
    texts = ["<a b>", "\n", "😀", "你好", "gpt2np"]
    new = [AddedTokenOfOurs(text, 4096 + n, special=False) for n, text in enumerate(texts)]
    same = AddedTokenOfOurs("the", own.vocabulary.ids["the"], special=False)
    ours = Tokenizer(
        replace(own.vocabulary, added_tokens=(same, *own.vocabulary.added_tokens, *new))
    )
    ours.save(tmp_path)
    again, theirs = Tokenizer.load(tmp_path), Rust.from_file(str(tmp_path / "tokenizer.json"))
    text = "a<a b>\n😀 你好gpt2npx hello hellos the"
    ids = ours.encode(text)
    assert ids == again.encode(text) == theirs.encode(text).ids
    assert again.decode(ids) == theirs.decode(ids) == text
    assert pickle.loads(pickle.dumps(again)).vocabulary == again.vocabulary == ours.vocabulary
