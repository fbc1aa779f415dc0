"""Training of a vocabulary without peers: pieces, special tokens, options, both ways to merge."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2np import InvalidArgumentError, Tokenizer
from gpt2np.tokenizer.pre_tokenizer import GPT2_PATTERN, QWEN2_PATTERN, make_pre_tokenizer
from gpt2np.tokenizer.training import merges, report_training
from gpt2np.tokenizer.training.train import TrainingOptions, count_pieces, train

EOT = "<|endoftext|>"
TEXT = "The cat sat on the mat. It's the cat's mat, 12 times; déjà vu 中文\n\n\tThe end.  " * 5


@pytest.mark.parametrize("options", [{}, {"alphabet": "characters"}, {"max_token_length": 6}])
def test_loop_and_numpy_learn_the_same_merges_and_report_the_ids_of_the_text(options, monkeypatch):
    options = TrainingOptions(vocab_size=320, pattern=None, **options)
    monkeypatch.setattr(merges, "_SMALL_MERGE", 0)
    trained = train([TEXT], options)
    monkeypatch.setattr(merges, "_SMALL_MERGE", 1 << 40)
    assert train([TEXT], options) == trained
    report = report_training(trained)
    assert report.tokens == len(Tokenizer(trained.vocabulary).encode(TEXT))
    assert report.symbols == len(TEXT if options.alphabet == "characters" else TEXT.encode())
    assert f"{report.reduction:.1f} % fewer" in report.to_text()


class TestPieces:
    @settings(deadline=None, max_examples=40)
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


class TestBadOptions:
    @pytest.mark.parametrize(
        "options, message",
        [
            ({"vocab_size": 256}, "the 256 bytes and the special tokens need 257"),
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
        with pytest.raises(InvalidArgumentError, match=r"\\udfff' has a lone surrogate"):
            train(["a\udfff"], TrainingOptions(alphabet=alphabet))


def test_progress():
    calls = []
    options = TrainingOptions(vocab_size=260)
    trained = train(["low lower lowest"], options, lambda *numbers: calls.append(numbers))
    assert calls == [(258, 260), (259, 260), (260, 260)]
    assert trained.merges == [("l", "o"), ("lo", "w"), ("Ġ", "low")]  # the docstring's example


def test_unknown_character_gets_the_id_of_unk():
    options = TrainingOptions(vocab_size=12, alphabet="characters", special_tokens=("<unk>",))
    assert Tokenizer(train(["axb " * 10 + "abab" * 20, "abx"], options).vocabulary).encode("é") == [
        0
    ]


def test_special_token_of_one_character_keeps_the_character(tmp_path):
    """The character was deleted from the vocabulary, so that no text with it could be encoded."""
    options = TrainingOptions(vocab_size=9, alphabet="characters", special_tokens=("a", " "))
    tokenizer = Tokenizer(train(["bcbac"], options).vocabulary)
    assert tokenizer.encode("a", allowed_special="all") == [0]
    ids = tokenizer.encode("abc", disallowed_special=())
    assert ids[0] == 0 and tokenizer.decode(ids) == "abc"
    tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).vocabulary == tokenizer.vocabulary
