"""`==` of results: by value, also of arrays and NaN, and without the time."""

import numpy as np
import pytest

from gpt2np import trace
from gpt2np.interp import attention_summary, attribution, lens_table

MAKERS = {
    "score": lambda lm, text: lm.score(
        text, from_end_of_text=False
    ),  # its first log probability is NaN
    "trace": trace,
    "lens": lambda lm, text: lens_table(lm.model, trace(lm, text), 2),
    "attribution": lambda lm, text: attribution(lm.model, trace(lm, text), [5, 6]),
    "attention": lambda lm, text: attention_summary(trace(lm, text)),
    "completion": lambda lm, text: lm.generate(text, max_new_tokens=4, seed=1, logprobs=2),
    "batch": lambda lm, text: lm.generate_batch(
        [text], num_return_sequences=2, max_new_tokens=4, seed=1
    )[0],
}


@pytest.mark.parametrize("name", MAKERS)
def test_equal_results_are_equal_and_others_are_not(lm, name):
    first, again, other, longer = (
        MAKERS[name](lm, text)
        for text in ("The old king", "The old king", "The young queen", "The old king said so")
    )
    assert first == again and (first != again) is False
    assert first != other and first != longer and first != 3
    assert first in [again] and first not in [other]


def test_a_trace_of_other_points_differs(lm):
    whole = trace(lm, "The king")
    assert trace(lm, "The king", "embed") == trace(lm, "The king", "embed") != whole
    changed = trace(lm, "The king")
    changed.arrays["embed"][0, 0] = np.nextafter(changed.arrays["embed"][0, 0], np.float32(9))
    assert changed != whole
