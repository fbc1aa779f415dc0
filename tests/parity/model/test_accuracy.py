"""Rounding errors of random checkpoints, relative to those of transformers."""

import numpy as np
import pytest


@pytest.mark.parametrize(
    "numbers",
    [[2, 6, 16, 25], pytest.param(range(60), marks=pytest.mark.slow)],
    ids=["4 narrow models", "60 models"],
)
def test_logits_are_as_close_to_the_exact_ones_as_those_of_transformers(numbers):
    import accuracy  # and with it torch

    found = [accuracy.measure(accuracy.random_case(number)) for number in numbers]
    ratios = [accuracy.ratio(errors.ours_usual, errors.theirs_usual) for errors in found]
    assert np.median(ratios) <= 1.03 and max(ratios) <= 1.25


def test_error_of_a_single_operation():
    """The sum of a softmax is no running sum, and a group of 192 inputs rounds as in MKL."""
    import accuracy

    for name, ours, theirs, exact in accuracy.operations():
        if name.startswith(("softmax", "layer norm", "product, 768 inputs, groups of 192")):
            off, theirs_off = (np.square(y - exact).mean() ** 0.5 for y in (ours, theirs))
            assert off <= 1.2 * theirs_off, name
