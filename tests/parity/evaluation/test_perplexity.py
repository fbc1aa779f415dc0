"""Perplexity compared with the program of Hugging Face's guide, and by hand."""

import math

import numpy as np
import pytest
from helpers.references import load_reference

from gpt2np.errors import InvalidArgumentError
from gpt2np.evaluation.perplexity import perplexity

TEXT = (
    "Once upon a time there was a little fox who lived in a hollow tree. Every morning he went "
    "down to the brook, and every evening he came home again.\n\n“Where have you been?” asked "
    "the owl — “I have been waiting all day long.”\n"
) * 20
SOME = TEXT[: len(TEXT) // 2]  # more than a window


@pytest.fixture(scope="module")
def peer(bundled):
    return load_reference(bundled)


def guide(model, ids, context, stride):
    """Return the perplexity per token with the guide's windows, and the number of tokens.

    The loss of transformers is the mean over a window's shifted labels, without labels of -100.
    """
    import torch

    losses, counts, before = [], [], 0
    for begin in range(0, len(ids), stride):
        end = min(begin + context, len(ids))
        labels = torch.tensor(ids[begin:end])[None]
        inputs, new = labels.clone(), end - before
        labels[:, :-new] = -100
        counted = int((labels[:, 1:] != -100).sum())
        if counted:  # else the loss is NaN
            with torch.no_grad():
                losses.append(model(inputs, labels=labels).loss.item())
            counts.append(counted)
        before = end
        if end == len(ids):
            break
    return math.exp(np.average(losses, weights=counts)), sum(counts)


class TestAgainstTransformers:
    @pytest.mark.parametrize(("context", "stride"), [(200, 200), (None, None), (16, 1), (7, 5)])
    @pytest.mark.parametrize("part", [2, pytest.param(1, marks=pytest.mark.slow)])
    def test_strided_and_not(self, lm, peer, context, stride, part):
        text = TEXT[: {None: len(TEXT), 200: 2400}.get(context, 160) // part]
        ids = lm.tokenizer.encode(text)
        result = perplexity(lm, [text], context=context, stride=stride, from_end_of_text=False)
        even, counted = guide(peer, ids, context or 512, stride or 256)
        assert (result.tokens, result.counted) == (len(ids), counted)
        assert result.perplexity == pytest.approx(even, rel=1e-5)

    def test_an_end_of_text_before(self, lm, peer):
        result = perplexity(lm, ["The", TEXT[:300]], from_end_of_text=True)
        losses = []
        for text in ("The", TEXT[:300]):
            ids = lm.tokenizer.encode(text)
            even, count = guide(peer, [lm.bos_token_id, *ids], 512, 256)
            losses.append((count, count * math.log(even)))
        counted, total = np.sum(losses, 0)
        assert result.counted == result.tokens == counted
        assert -result.log_probability == pytest.approx(total, rel=1e-5)


class TestNumbers:
    def test_units(self, lm):
        text = "Ein Fuchs,  größer als\nich — “ja”.\n"
        result = perplexity(lm, [text], from_end_of_text=True)
        assert (result.words, result.characters, result.bytes) == (7, 35, 43)
        assert len(text) == 35 and len(text.encode()) == 43 and len(text.split()) == 7
        nats = -result.log_probability
        assert result.perplexity == pytest.approx(math.exp(nats / result.tokens))
        assert result.word_perplexity == pytest.approx(math.exp(nats / 7))
        assert result.byte_perplexity == pytest.approx(math.exp(nats / 43))
        assert result.bits_per_byte == pytest.approx(nats / math.log(2) / 43)
        assert result.bits_per_character == pytest.approx(nats / math.log(2) / 35)

    def test_tokens_that_do_not_count_are_as_hard_as_the_others(self, lm):
        result = perplexity(lm, [SOME], stride=512, from_end_of_text=False)
        assert result.counted < result.tokens - 1
        nats = -result.log_probability / result.counted * result.tokens
        assert result.bits_per_byte == pytest.approx(nats / math.log(2) / len(SOME.encode()))

    def test_infinity_instead_of_an_overflow(self, lm):
        result = perplexity(lm, ["xq" * 300])
        assert result.words == 1 and result.word_perplexity == math.inf
        assert math.isfinite(result.perplexity)


@pytest.mark.parametrize(
    ("documents", "from_end_of_text", "told"),
    [
        ([], False, "there is no text"),
        ([""], False, "there is no text"),
        ([], True, "there is no text"),
        (["The"], False, "no token has a token before it"),
    ],
)
def test_nothing_to_measure(lm, documents, from_end_of_text, told):
    with pytest.raises(InvalidArgumentError, match=told):
        perplexity(lm, documents, from_end_of_text=from_end_of_text)
    assert perplexity(lm, ["The"], from_end_of_text=True).counted == 1
