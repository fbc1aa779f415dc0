"""Scoring of given ids: windows by hand, transformers in float64, bounded memory."""

import math

import numpy as np
import pytest
from helpers.references import load_reference, reference_logits, to_float64

from gpt2np import LanguageModel
from gpt2np.errors import InvalidArgumentError
from gpt2np.generation import scoring
from gpt2np.generation.scoring import score_texts, strided_spans
from gpt2np.kernels.blas import small_kernels
from gpt2np.model import GPT2


class TestStridedSpans:
    @pytest.mark.parametrize(
        ("length", "context", "stride", "n_prefix", "spans"),
        [
            (1, 4, 2, 1, []),
            (5, 4, 2, 1, [(0, 1, 5)]),  # the model reads 4 tokens
            (6, 4, 2, 1, [(0, 1, 4), (2, 4, 6)]),
            (4, 4, 2, 3, [(0, 3, 4)]),
            (9, 4, 2, 5, [(4, 5, 9)]),
            (9, 4, 2, 4, [(2, 4, 6), (4, 6, 8), (6, 8, 9)]),
            (0, 4, 2, 0, []),
            (1, 4, 2, 0, []),
            (4, 4, 2, 0, [(0, 1, 4)]),
            (9, 4, 2, 0, [(0, 1, 4), (2, 4, 6), (4, 6, 8), (6, 8, 9)]),
            (8, 4, 4, 0, [(0, 1, 4), (4, 5, 8)]),
            (9, 4, 4, 0, [(0, 1, 4), (4, 5, 8)]),  # nothing precedes the ninth
            (6, 4, 3, 0, [(0, 1, 4), (3, 4, 6)]),
        ],
    )
    def test_by_hand(self, length, context, stride, n_prefix, spans):
        assert list(strided_spans(length, context, stride, n_prefix)) == spans


@pytest.fixture(scope="module")
def tiny_model(tiny):
    return GPT2.from_folder(tiny[0])


@pytest.fixture(scope="module")
def reference(tiny):
    """Function from n ids to transformers' log probabilities (n, V) in float64."""
    model = to_float64(load_reference(tiny[0]))

    def log_probabilities(ids):
        logits = reference_logits(model, ids)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    return log_probabilities


def random_ids(n, seed=0):
    return np.random.default_rng(seed).integers(0, 211, n)


class TestScoreText:
    @pytest.mark.parametrize("length", [2, 47, 48, 49, 200])
    @pytest.mark.parametrize(("context", "stride"), [(None, None), (48, 48), (20, 7)])
    def test_as_transformers_in_float64(self, tiny_model, reference, length, context, stride):
        ids = random_ids(length, seed=length)
        [score] = score_texts(tiny_model, [ids], None, context, stride)
        expected, best = np.full(length, np.nan), np.full(length, -1)
        for start, first, stop in strided_spans(length, context or 48, stride or 24):
            table = reference(ids[start : stop - 1])[first - 1 - start :]
            expected[first:stop] = table[np.arange(stop - first), ids[first:stop]]
            best[first:stop] = table.argmax(-1)
        assert score.ids.tolist() == ids.tolist()
        assert score.logprobs == pytest.approx(expected, abs=2e-6, nan_ok=True)
        assert score.best.tolist() == best.tolist()
        assert score.total == pytest.approx(np.nansum(expected), rel=1e-6)
        assert score.perplexity == pytest.approx(math.exp(-np.nanmean(expected)), rel=1e-6)

    @pytest.mark.parametrize("ids", [[], [5], np.array([5], np.uint16)])
    def test_nothing_to_predict(self, tiny_model, ids):
        [score] = score_texts(tiny_model, [ids])
        assert len(score.ids) == len(score.logprobs) == len(ids)
        assert np.isnan(score.logprobs).all() and math.isnan(score.perplexity)
        assert math.isnan(score.total) and score.n_scored == 0 and (score.best == -1).all()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"context": 49}, "context is 49; it must be an integer from 2 to 48"),
            ({"context": 10, "stride": 11}, "stride is 11; it must be an integer from 1 to 10"),
            ({"stride": 0}, "stride is 0"),
        ],
    )
    def test_impossible_windows(self, tiny_model, options, message):
        with pytest.raises(InvalidArgumentError, match=message):
            score_texts(tiny_model, [[1, 2, 3]], **options)

    @pytest.mark.parametrize("ids", [[1, 211], [-1, 2], [[1, 2]], [1.5, 2.5], b"abc"])
    def test_impossible_ids(self, tiny_model, ids):
        with pytest.raises(InvalidArgumentError):
            score_texts(tiny_model, [ids])


def score_windows(model, windows):
    """Score ids[first:] of each window (ids, first)."""
    texts, prefixes = zip(*((ids[first:], ids[:first]) for ids, first in windows), strict=True)
    return score_texts(model, texts, prefixes)


class TestScoreWindows:
    def test_alone_or_together(self, tiny_model):
        rng = np.random.default_rng(3)
        windows = [
            (random_ids(n, seed=n), int(rng.integers(1, n))) for n in rng.integers(2, 50, 20)
        ]
        batched = score_windows(tiny_model, windows)
        for (ids, first), score in zip(windows, batched, strict=True):
            (alone,) = score_windows(tiny_model, [(ids, first)])
            assert len(score.logprobs) == len(ids) - first
            assert alone.best.tolist() == score.best.tolist()
            if small_kernels():
                assert alone.logprobs.tolist() == score.logprobs.tolist()
            assert alone.logprobs == pytest.approx(score.logprobs, abs=1e-5)

    def test_what_is_as_wide_as_the_vocabulary_has_a_bound(self, tiny_model, monkeypatch):
        rows, tokens = [], []
        forward = GPT2.forward

        def watched(self, sequences, caches=None, **options):
            logits = forward(self, sequences, caches, **options)
            rows.append(len(logits))
            tokens.append(sum(map(len, sequences)))
            return logits

        monkeypatch.setattr(GPT2, "forward", watched)
        windows = [(random_ids(48, seed=i), 1) for i in range(40)]
        windows += [(random_ids(48, seed=i), 47) for i in range(40)]
        windows += [(random_ids(49), 20)]
        assert len(score_windows(tiny_model, windows)) == 81
        assert sum(rows) == 40 * 47 + 40 + 29
        assert max(rows) == scoring._MAX_ROWS and max(tokens) <= scoring._MAX_TOKENS
        assert len(rows) < 30  # short windows share passes


class TestLanguageModel:
    def test_the_first_token_follows_the_end_of_text(self, lm):
        good, bad = lm.score(["These foxes are here.", "This foxes are here."])
        assert good.total > bad.total
        one = lm.score("The", given="")
        logits = lm.model.forward([[lm.bos_token_id]])[0].astype(float)
        expected = logits[one.ids[0]] - np.logaddexp.reduce(logits)
        assert one.total == one.logprobs[0] == pytest.approx(expected, abs=1e-5)
        assert lm.score("The", from_end_of_text=True).total == one.total

    def test_ids_that_begin_with_the_end_of_text_get_no_second_one(self, lm):
        plain = lm.score("The little fox ran home.")
        begun, again = lm.score([[lm.bos_token_id, *plain.ids], plain.ids])
        assert np.isnan(begun.logprobs[0])
        assert again.total == pytest.approx(plain.total, rel=1e-6)
        assert begun.total == pytest.approx(plain.total, rel=1e-6)
        twice = lm.score([lm.bos_token_id, *plain.ids], from_end_of_text=True)
        assert not np.isnan(twice.logprobs).any()

    def test_without_a_token_before_the_text_the_first_is_not_scored(self, lm):
        score = lm.score("The little fox", from_end_of_text=False)
        assert np.isnan(score.logprobs[0]) and score.n_scored == len(score.ids) - 1
        assert repr(score).startswith("<TextScore of 3 tokens (1 not scored): log probability -")
        assert math.isnan(lm.score("The", from_end_of_text=False).total)
        assert math.isnan(lm.score("").total)
        with pytest.raises(InvalidArgumentError, match="from_end_of_text is 'no'"):
            lm.score("The", from_end_of_text="no")

    def test_given_is_the_text_before(self, lm):
        whole, text = (
            lm.score("The little fox ran home.", from_end_of_text=False),
            lm.score(" ran home.", given="The little fox"),
        )
        n = len(text.ids)
        assert text.ids.tolist() == whole.ids[-n:].tolist()
        assert text.logprobs == pytest.approx(whole.logprobs[-n:], abs=1e-5)
        ids = lm.tokenizer.encode("The little fox")
        assert lm.score(" ran home.", given=ids).total == text.total
        begun = lm.score(" ran home.", given="The little fox", from_end_of_text=True)
        assert begun.total != text.total

    @pytest.mark.parametrize(
        ("n_given", "context"), [*((n, 30) for n in (1, 26, 29, 30, 31, 100)), (513, None)]
    )
    def test_a_long_given_text_loses_its_first_tokens(self, lm, n_given, context):
        """All tokens of a choice see the same context, as long as possible: as in the harness."""
        given = (lm.tokenizer.encode(" The little fox ran home and") * 300)[:n_given]
        choices = [lm.tokenizer.encode(text) for text in (" slept.", " ate a big red apple.")]
        scores = lm.score(choices, given=given, context=context)
        for ids, score in zip(choices, scores, strict=True):
            inputs = [*given, *ids][-(context or 512) - 1 : -1]
            logits = lm.model.forward([inputs])[-len(ids) :].astype(float)
            expected = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
            expected = expected[np.arange(len(ids)), ids]
            assert score.logprobs == pytest.approx(expected, abs=1e-5)

    @pytest.mark.parametrize(
        "text", ["The  little\n\nfox\u00a0ran. ", "Hé 🦊 \n x \n", " ", "", "漢字 é"]
    )
    def test_words_and_tokens(self, lm, text):
        score = lm.score(text)
        words, tokens = score.by_word(), score.by_token()
        assert [word.text for word in words] == text.split()
        assert all(text[word.start : word.stop] == word.text for word in words)
        if words:
            assert sum(word.logprob for word in words) == pytest.approx(score.total)
        assert all(word.surprisal == pytest.approx(-word.logprob / math.log(2)) for word in words)
        assert [token.logprob for token in tokens] == score.logprobs.tolist()
        for token in tokens:
            assert token.text.startswith("\\x") or text[token.start : token.stop] == token.text

    def test_words_need_the_texts_of_tokens(self, tiny_model):
        with pytest.raises(InvalidArgumentError, match=r"LanguageModel\.score"):
            score_texts(tiny_model, [[1, 2]])[0].by_word()

    def test_no_end_of_text(self, lm):
        without = LanguageModel(lm.model, lm.tokenizer, name="mine")
        without.bos_token_id = None
        with pytest.raises(InvalidArgumentError, match="mine has no end-of-text"):
            without.score("The")
        assert np.isnan(without.score("The", from_end_of_text=False).logprobs).all()
