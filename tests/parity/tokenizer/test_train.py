"""Learned vocabularies equal those of `tokenizers`' BpeTrainer, merge by merge and id by id."""

import json
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from gpt2np import Tokenizer as Ours
from gpt2np.tokenizer.pre_tokenizer import GPT2_PATTERN, QWEN2_PATTERN
from gpt2np.tokenizer.training import merges
from gpt2np.tokenizer.training.train import TrainingOptions, split_at_separators, train

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
    @pytest.mark.parametrize(
        ("size", "step"), [slow(512, 1), slow(1024, 1), (2048, 16), slow(8192, 1), slow(32_000, 1)]
    )
    def test_stories(self, stories, size, step):
        trained = assert_equal(stories[::step], TrainingOptions(vocab_size=size))
        assert (len(trained.tokens) == size) == (size <= 8192)  # then no pair is left

    @pytest.mark.parametrize(("size", "step"), [(512, 12), slow(1024, 1), slow(32_000, 1)])
    def test_all_languages(self, languages, size, step):
        """Of every twelfth language (`-m slow`: all)."""
        assert_equal(languages[::step], TrainingOptions(vocab_size=size))

    @pytest.mark.parametrize(
        "options",
        [
            {"min_frequency": 50, "max_token_length": 6},
            {"pattern": QWEN2_PATTERN},
            {"pattern": QWEN2_PATTERN, "alphabet": "characters"},
            {"alphabet": "characters", "special_tokens": ("<unk>", EOT, "<pad>", EOT)},
            {"special_tokens": ()},
        ],
        ids=str,
    )
    @pytest.mark.parametrize(("size", "step"), [(1000, 60), slow(4000, 10)])
    def test_options(self, stories, languages, options, size, step):
        documents = [*stories[: 600 // step], *languages[::step]]
        assert_equal(documents, TrainingOptions(vocab_size=size, **options))

    @pytest.mark.parametrize("alphabet", ["bytes", "characters"])
    @pytest.mark.parametrize("length", [None, 9])
    @pytest.mark.parametrize(("size", "count"), [(500, 1), slow(3000, 5)])
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


def test_special_token_that_a_merge_would_spell_has_one_id():
    """No text contains such a token, but the byte alphabet can spell it."""
    trained = assert_equal([" ab ab"], TrainingOptions(vocab_size=300, special_tokens=("Ġab",)))
    assert trained.merges == [("a", "b"), ("Ġ", "ab")]
    assert trained.tokens[0] == "Ġab" and len(trained.tokens) == 258
