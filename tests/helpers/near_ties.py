"""Near-ties: choices of a sequence that rounding may change.

Without small-matrix kernels, the last bits of a row depend on the rest of the batch, so that a
choice with a small margin may differ.
"""

import numpy as np

from gpt2np.generation.sampling import next_probabilities
from gpt2np.kernels.blas import small_kernels

NEAR_TIE = 1e-4


def watch(sequence):
    """Return a list that receives the margin of each later choice."""
    gaps, choose = [], sequence.choose

    def watched(logits):
        gaps.append(_gap(sequence, logits))
        return choose(logits)

    sequence.choose = watched
    return gaps


def _gap(sequence, logits):
    """Return the margin: between the two highest logits, or from the random number to an edge."""
    sequence.prepare_mask()
    logits = sequence.request.process(logits, sequence.ids, sequence.mask)
    if sequence.request.options.temperature == 0:
        second, first = np.partition(logits, -2)[-2:]
        return first - second
    edges = np.cumsum(next_probabilities(logits, sequence.request.options))
    return np.abs(edges / edges[-1] - sequence.rng.number(len(sequence.ids))).min()


def assert_fell_otherwise(ids, single, gaps):
    """Check that ids differ from the watched ids only from a near-tie on."""
    place = next(i for i, (a, b) in enumerate(zip(ids, single, strict=False)) if a != b)
    assert not small_kernels() and gaps[place] < NEAR_TIE
