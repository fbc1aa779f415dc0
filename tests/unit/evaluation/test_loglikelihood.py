"""Encoding of context and continuation; parity with the harness is in test_harness.py."""

import pytest

from gpt2np.errors import ContextLengthError, InvalidArgumentError
from gpt2np.evaluation.loglikelihood import continuation_window


@pytest.mark.parametrize(
    ("context", "continuation"),
    [
        ("Once upon a ti", "me there was a fox"),
        ("The old woman said", " to the fox"),
        ("The old woman said ", "to the fox"),
    ],
)
def test_the_context_is_encoded_alone_and_as_many_tokens_of_both_are_left_out(
    lm, context, continuation
):
    encode = lm.tokenizer.encode
    before, whole = encode(context.rstrip()), encode(context + continuation)
    window = continuation_window(lm, context, continuation)
    assert window.first == len(before)
    assert window.ids.tolist() == before + whole[len(before) :]


def test_a_token_spans_the_border_of_the_first_of_these(lm):
    before = lm.tokenizer.encode("Once upon a ti")
    whole = lm.tokenizer.encode("Once upon a time there was a fox")
    assert whole[: len(before)] != before


def test_an_empty_context_is_an_end_of_text(lm):
    ids = lm.tokenizer.encode("Once")
    for context, text in (("", "Once"), (" ", "Once"), ("", "<|endoftext|>Once")):
        window = continuation_window(lm, context, text)
        expected = [lm.bos_token_id, *(lm.tokenizer.encode(" Once") if context else ids)]
        assert (window.ids.tolist(), window.first) == (expected, 1)


def test_nothing_to_predict_and_too_much(lm):
    with pytest.raises(InvalidArgumentError, match="nothing to predict: the continuation is ''"):
        continuation_window(lm, "The fox", "")
    with pytest.raises(ContextLengthError, match="more than the model's context of 512"):
        continuation_window(lm, "The fox", " ran" * 600)
