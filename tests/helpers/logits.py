"""Compare logits with `transformers` and with a float64 reference."""

import copy

import numpy as np

from helpers.references import reference_logits, to_float64

NEAR_TIE = 1e-4
MAX_RATIO = 1.15


def check_logits(name, model, reference, sequences):
    """Assert equal arg-maxes, and at most MAX_RATIO times the error of transformers."""
    exact_model = to_float64(copy.deepcopy(reference))
    ours = [model.forward([ids]) for ids in sequences]
    theirs = [reference_logits(reference, ids) for ids in sequences]
    exact = [reference_logits(exact_model, ids) for ids in sequences]
    compare_logits(name, ours, theirs, exact)


def compare_logits(name, ours, theirs, exact):
    """Do the assertions of `check_logits` on the logits (T, V) of several sequences."""
    assert {logits.dtype for logits in (*ours, *theirs)} == {np.dtype(np.float32)}
    ours, theirs, exact = np.concatenate(ours), np.concatenate(theirs), np.concatenate(exact)
    ours_off, theirs_off = (np.sqrt(np.mean(np.square(y - exact))) for y in (ours, theirs))
    differing = np.flatnonzero(ours.argmax(-1) != theirs.argmax(-1))
    for row in differing:
        second, first = np.sort(exact[row])[-2:]
        assert first - second < NEAR_TIE, f"{name}, row {row}: the arg-max differs"
    assert ours_off <= MAX_RATIO * theirs_off
