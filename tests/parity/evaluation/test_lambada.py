"""LAMBADA by both definitions, compared with programs based on transformers."""

import json
import math

import numpy as np
import pytest
from helpers.references import load_reference, reference_logits, to_float64

from gpt2np.errors import ContextLengthError, InvalidArgumentError
from gpt2np.evaluation.lambada import STOP_WORDS, lambada, last_token_window, word_token_ids
from gpt2np.evaluation.loglikelihood import continuation_window

STORIES = [
    "There was once a poor woman who had an only son. She loved her son",
    "The king had a horse. He rode on the horse all day, and at night he fed the horse",
    "“Come in,” said the old woman. The fox came in and sat down by the old woman",
    "One",
    "He went to the well, and said:\n\n“I must",
    "they cried, Rumpelstiltskin",
    "A space at the end ",
    "Once upon a time there was a king, and he had a daughter. Once upon a",
]


@pytest.fixture(scope="module")
def peer(bundled):
    """Function: n ids → next-token log probabilities (n, V) by transformers in float64."""
    model = to_float64(load_reference(bundled))

    def log_probabilities(ids):
        logits = reference_logits(model, ids)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    return log_probabilities


@pytest.fixture(scope="module")
def passages(data):
    lines = (data / "eval" / "lambada_test.jsonl").read_text(encoding="utf-8").splitlines()
    return STORIES + [json.loads(line)["text"] for line in lines[:10]]


def test_harness(lm, peer, passages):
    correct, total = 0, 0.0
    for passage in passages:
        *before, word = passage.split(" ")
        context = lm.tokenizer.encode(" ".join(before).rstrip()) or [lm.bos_token_id]
        ids = lm.tokenizer.encode(passage if before else f" {word}")
        ids = ids if before else [lm.bos_token_id, *ids]
        target = ids[len(context) :]
        table = peer(ids[:-1])[len(context) - 1 :]
        correct += table.argmax(-1).tolist() == target
        total += table[np.arange(len(target)), target].sum()
    result = lambada(lm, passages)
    assert (result.passages, result.correct) == (len(passages), correct)
    assert result.correct_filtered is None and result.accuracy_filtered is None
    assert result.accuracy == correct / len(passages) > 0
    assert result.perplexity == pytest.approx(math.exp(-total / len(passages)), rel=1e-5)


def test_gpt2_paper(lm, peer, passages):
    banned = [
        number
        for number, token in lm.tokenizer.vocabulary.token_bytes.items()
        if token[:1] == b" " and token[1:].decode("utf-8", "replace").lower() in STOP_WORDS
    ]
    assert len(banned) > 100
    correct, filtered, total = 0, 0, 0.0
    for passage in passages:
        ids = lm.tokenizer.encode(passage)
        *before, target = ids if len(ids) > 1 else [lm.bos_token_id, *ids]
        row = peer(before)[-1]
        total += row[target]
        correct += int(row.argmax()) == target
        row[banned] = -np.inf
        filtered += int(row.argmax()) == target
    result = lambada(lm, passages, "gpt2-paper")
    assert (result.correct, result.correct_filtered) == (correct, filtered)
    assert result.accuracy_filtered == filtered / len(passages)
    assert filtered != correct
    assert result.perplexity == pytest.approx(math.exp(-total / len(passages)), rel=1e-5)


def test_stop_words_are_whole_words_with_a_space(lm):
    words = [lm.tokenizer.decode([number]) for number in word_token_ids(lm, {"the", "then"})]
    assert " the" in words and " The" in words and " then" in words
    assert all(word.lower() in (" the", " then") for word in words)
    assert word_token_ids(lm, []) == []


def test_progress(lm):
    calls = []
    result = lambada(lm, STORIES, on_progress=lambda *call: calls.append(call))
    assert [call[:2] for call in calls] == [(i, len(STORIES)) for i in range(1, len(STORIES) + 1)]
    assert calls[-1][2] == {"accuracy": result.accuracy, "perplexity": result.perplexity}


class TestWindows:
    def test_what_belongs_to_the_continuation(self, lm):
        def parts(context, continuation):
            window = continuation_window(lm, context, continuation)
            ids = window.ids.tolist()
            return ids[: window.first], ids[window.first :]

        encode, begin = lm.tokenizer.encode, [lm.bos_token_id]
        assert parts("The old", " fox") == (encode("The old"), encode(" fox"))
        # Trailing white space of the context moves to the continuation.
        assert parts("The old ", "fox") == (encode("The old"), encode(" fox"))
        assert parts("", "The fox") == (begin, encode("The fox"))
        assert parts(" ", "fox") == (begin, encode(" fox"))
        assert parts("", "<|endoftext|>The") == (begin, encode("The"))
        assert parts("A<|endoftext|>", "The") == (encode("A") + begin, encode("The"))

    def test_a_long_context_loses_its_beginning(self, lm):
        window = continuation_window(lm, "The fox went home. " * 200, "He slept.")
        whole = lm.tokenizer.encode("The fox went home. " * 200 + "He slept.")
        assert window.ids.tolist() == whole[-513:]
        assert lm.tokenizer.decode(window.ids[window.first :].tolist()) == " He slept."
        assert (
            last_token_window(lm, "The fox went home. " * 200).ids.tolist()
            == (lm.tokenizer.encode("The fox went home. " * 200)[-513:])
        )

    def test_what_cannot_be_predicted(self, lm):
        with pytest.raises(
            InvalidArgumentError, match="nothing to predict: the continuation is ''"
        ):
            continuation_window(lm, "The", "")
        with pytest.raises(ContextLengthError, match="more than the model's context of 512"):
            continuation_window(lm, "The", " fox went home and" * 200)
        for definition in ("harness", "gpt2-paper"):
            with pytest.raises(InvalidArgumentError, match="passage 2 is empty"):
                lambada(lm, ["The fox", "\n"], definition)
        with pytest.raises(InvalidArgumentError, match="there are no passages"):
            lambada(lm, [])
