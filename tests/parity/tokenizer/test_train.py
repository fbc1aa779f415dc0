"""Learned vocabularies equal those of `tokenizers`' BpeTrainer, merge by merge and id by id."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from gpt2np import InvalidArgumentError
from gpt2np import Tokenizer as Ours
from gpt2np.tokenizer.pre_tokenizer import (
    GPT2_PATTERN,
    QWEN2_PATTERN,
    make_pre_tokenizer,
)
from gpt2np.tokenizer.training import merges
from gpt2np.tokenizer.training.train import (
    TrainingOptions,
    count_pieces,
    split_at_separators,
    train,
)

EOT = "<|endoftext|>"


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def reference(documents, options):
    """Return (tokens by id, merges by rank) of `tokenizers`."""
    in_bytes = options.alphabet == "bytes"
    steps = []
    if options.pattern == GPT2_PATTERN and in_bytes:
        steps = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    else:
        if options.pattern is not None:
            steps.append(pre_tokenizers.Split(Regex(options.pattern), "isolated"))
        if in_bytes:
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer = Tokenizer(models.BPE())
    if steps:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    arguments = {
        "max_token_length": options.max_token_length,
        "initial_alphabet": pre_tokenizers.ByteLevel.alphabet() if in_bytes else None,
    }
    trainer = trainers.BpeTrainer(
        vocab_size=options.vocab_size,
        min_frequency=options.min_frequency,
        special_tokens=list(options.special_tokens),
        show_progress=False,
        **{name: value for name, value in arguments.items() if value is not None},
    )
    tokenizer.train_from_iterator(split_at_separators(options.special_tokens, documents), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [tuple(m) for m in model["merges"]]


def assert_equal(documents, options):
    trained = train(documents, options)
    tokens, merges = reference(documents, options)
    assert trained.merges == merges
    assert trained.tokens == tokens
    return trained


@pytest.fixture(scope="module")
def stories(data):
    with (data / "stories" / "train.txt").open(encoding="utf-8") as file:
        return file.read(3_000_000).split(EOT)


@pytest.fixture(scope="module")
def languages(data):
    return [path.read_text(encoding="utf-8") for path in sorted((data / "text/udhr").glob("*.txt"))]


class TestParity:
    @pytest.mark.parametrize("size", [slow(512), slow(1024), 8192, slow(32_000)])
    def test_stories(self, stories, size):
        trained = assert_equal(stories, TrainingOptions(vocab_size=size))
        assert (len(trained.tokens) == size) == (size <= 8192)  # then no pair is left

    @pytest.mark.parametrize(
        ("size", "step"), [(512, 6), slow(512, 1), slow(1024, 1), slow(8192, 1), slow(32_000, 1)]
    )
    def test_all_languages(self, languages, size, step):
        """Of every sixth language (`-m slow`: all)."""
        trained = assert_equal(languages[::step], TrainingOptions(vocab_size=size))
        assert len(trained.tokens) == size

    @pytest.mark.parametrize(
        "options",
        [
            {"min_frequency": 50},
            {"max_token_length": 6},
            {"max_token_length": 1},
            {"pattern": QWEN2_PATTERN},
            {"pattern": QWEN2_PATTERN, "alphabet": "characters"},
            {"alphabet": "characters"},
            {"alphabet": "characters", "special_tokens": ("<unk>", EOT, "<pad>", EOT)},
            {"special_tokens": ()},
        ],
        ids=str,
    )
    @pytest.mark.parametrize(("size", "step"), [(2000, 60), slow(4000, 10)])
    def test_options(self, stories, languages, options, size, step):
        documents = [*stories[: 600 // step], *languages[::step]]
        assert_equal(documents, TrainingOptions(vocab_size=size, **options))

    @pytest.mark.parametrize("alphabet", ["bytes", "characters"])
    @pytest.mark.parametrize("length", [None, 9])
    @pytest.mark.parametrize(("size", "count"), [(500, 2), slow(3000, 5)])
    def test_across_words(self, stories, languages, alphabet, length, size, count):
        """Of twice as many stories as languages."""
        options = TrainingOptions(
            vocab_size=size, pattern=None, alphabet=alphabet, max_token_length=length
        )
        trained = assert_equal([*stories[: 2 * count], *languages[:count]], options)
        assert any(" " in token.replace("Ġ", " ").strip() for token in trained.tokens)


SMALL_TEXTS = st.lists(
    st.one_of(
        st.text("ab", max_size=30),
        st.text("ab \n", max_size=30),
        st.text("abcé中\U0001f600 '1.\t\n\u00a0", max_size=40),
        st.text(st.characters(exclude_characters="\uffff", exclude_categories=["Cs"]), max_size=10),
    ),
    max_size=6,
)
SMALL_OPTIONS = st.builds(
    lambda extra, **options: TrainingOptions(
        vocab_size=extra + (257 if options["alphabet"] == "bytes" else 1), **options
    ),
    extra=st.integers(0, 60),
    min_frequency=st.integers(0, 3),
    max_token_length=st.sampled_from([None, 1, 2, 3, 4, 8]),
    pattern=st.sampled_from([GPT2_PATTERN, QWEN2_PATTERN, None]),
    alphabet=st.sampled_from(["bytes", "characters"]),
)


@pytest.mark.parametrize("examples", [50, slow(200)])
def test_small_corpora(examples):
    """Loop and NumPy train as `tokenizers` does, and count the tokens of each piece."""

    @settings(max_examples=examples)
    @given(documents=SMALL_TEXTS, options=SMALL_OPTIONS)
    @example(["aaaaa aaa aaaaaaa"], TrainingOptions(vocab_size=280))
    @example(["ababab abab ab"], TrainingOptions(vocab_size=280, pattern=None))
    @example([], TrainingOptions(vocab_size=280))
    def check(documents, options):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(merges, "_SMALL_MERGE", 0)
            by_numpy = assert_equal(documents, options)
            patch.setattr(merges, "_SMALL_MERGE", 1 << 40)
            assert train(documents, options) == by_numpy
        tokenizer = Ours(replace(by_numpy.vocabulary, pattern=None))
        for piece, tokens in by_numpy.piece_tokens.items():
            assert tokenizer.count(piece, disallowed_special=()) == tokens

    check()


class TestPieces:
    @settings(deadline=None, max_examples=100)
    @given(text=st.one_of(st.text("ab1.' \n\t\u00a0\x1c\u3000'sé", max_size=30), st.text()))
    @pytest.mark.parametrize("pattern", [GPT2_PATTERN, QWEN2_PATTERN])
    def test_cutting_at_spaces_changes_nothing(self, pattern, text):
        expected = Counter(make_pre_tokenizer(pattern)(text))
        assert count_pieces([text], pattern) == expected

    def test_words_are_cut_from_time_to_time(self, monkeypatch):
        documents = ["one two two", "two  three\n", "one two"] * 5
        expected = count_pieces(documents, GPT2_PATTERN)
        monkeypatch.setitem(count_pieces.__globals__, "_MAX_WORDS", 1)
        assert count_pieces(iter(documents), GPT2_PATTERN) == expected
        assert expected == Counter(
            p for text in documents for p in make_pre_tokenizer(GPT2_PATTERN)(text)
        )

    def test_of_separators_the_longest_counts(self):
        assert list(split_at_separators(["<a", "<a>"], ["1<a>2<a3", "4"])) == ["1", "2", "3", "4"]


class TestSpecialTokens:
    def test_never_merged_and_first(self):
        documents = [f"ab{EOT}ab<pad>ab"] * 3
        options = TrainingOptions(vocab_size=259, special_tokens=("<pad>", EOT))
        trained = train(documents, options)
        assert trained.tokens[:2] == ["<pad>", EOT]
        assert trained.special_ids == {"<pad>": 0, EOT: 1}
        assert trained.merges == [("a", "b")]
        assert set(trained.piece_counts) == {"ab"}

    def test_one_that_a_merge_would_spell_has_one_id(self):
        """No text contains such a token, but the byte alphabet can spell it."""
        trained = assert_equal([" ab ab"], TrainingOptions(vocab_size=300, special_tokens=("Ġab",)))
        assert trained.merges == [("a", "b"), ("Ġ", "ab")]
        assert trained.tokens[0] == "Ġab" and len(trained.tokens) == 258


class TestBadOptions:
    @pytest.mark.parametrize(
        "options, message",
        [
            ({"vocab_size": 256}, "the 256 bytes and the special tokens need 257"),
            ({"vocab_size": 0}, "vocab_size is 0"),
            ({"min_frequency": -1}, "min_frequency is -1"),
            ({"max_token_length": 0}, "max_token_length is 0"),
            ({"alphabet": "words"}, "alphabet is 'words'"),
            ({"special_tokens": ("é",)}, "'é' is a character of the byte alphabet"),
            ({"special_tokens": ("",)}, "must be a list of non-empty texts"),
            ({"special_tokens": ("<\udcff>",)}, "must be Unicode text"),
            ({"pattern": "(a"}, r"pattern is .* it must be gpt2, qwen2 or none"),
        ],
    )
    def test_are_named(self, options, message):
        with pytest.raises(InvalidArgumentError, match=message):
            TrainingOptions(**options)

    @pytest.mark.parametrize("alphabet", ["bytes", "characters"])
    def test_lone_surrogates(self, alphabet):
        with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
            train(["a\udfff"], TrainingOptions(alphabet=alphabet))


def test_progress():
    calls = []
    options = TrainingOptions(vocab_size=260)
    trained = train(["low lower lowest"], options, lambda *numbers: calls.append(numbers))
    assert calls == [(258, 260), (259, 260), (260, 260)]
    assert trained.merges == [("l", "o"), ("lo", "w"), ("Ġ", "low")]  # the docstring's example


def test_a_vocabulary_that_can_never_be_filled_takes_no_memory_for_it():
    assert len(train(["low lower"], TrainingOptions(vocab_size=1 << 40)).tokens) == 257 + 5


def test_unknown_character_gets_the_id_of_unk():
    options = TrainingOptions(vocab_size=12, alphabet="characters", special_tokens=("<unk>",))
    assert Ours(train(["axb " * 10 + "abab" * 20, "abx"], options).vocabulary).encode("é") == [0]


def test_special_token_of_one_character_keeps_the_character(tmp_path):
    """The character was deleted from the vocabulary, so that no text with it could be encoded."""
    options = TrainingOptions(vocab_size=9, alphabet="characters", special_tokens=("a", " "))
    tokenizer = Ours(train(["bcbac"], options).vocabulary)
    assert tokenizer.encode("a", allowed_special="all") == [0]
    ids = tokenizer.encode("abc", disallowed_special=())
    assert ids[0] == 0 and tokenizer.decode(ids) == "abc"
    tokenizer.save(tmp_path)
    assert Ours.load(tmp_path).vocabulary == tokenizer.vocabulary
