"""How near a sequence's choices were to others.

Where BLAS has no routine for small products, a row's last bits depend on those beside it, and what
is so near may fall otherwise.
"""

import numpy as np

from gpt2np.generation.logits_processors import process_logits
from gpt2np.generation.sampling import next_probabilities
from gpt2np.kernels.blas import small_kernels

NEAR_TIE = 1e-4


def watch(sequence):
    """A list that gets the distance of each choice to come."""
    gaps, choose = [], sequence.choose

    def watched(logits):
        gaps.append(_gap(sequence, logits))
        return choose(logits)

    sequence.choose = watched
    return gaps


def _gap(sequence, logits):
    """Greedy: between the two highest logits; sampled: from the draw to where another id begins."""
    state = (sequence.prompt, sequence.ids, sequence.eos_token_ids, sequence.constraint)
    logits = process_logits(logits, sequence.options, *state)
    if sequence.options.temperature == 0:
        second, first = np.partition(logits, -2)[-2:]
        return first - second
    edges = np.cumsum(next_probabilities(logits, sequence.options))
    return np.abs(edges / edges[-1] - sequence.rng.peek(0)).min()


def assert_fell_otherwise(ids, single, gaps):
    """The ids may differ from those that were watched: they part where another was near."""
    place = next(i for i, (a, b) in enumerate(zip(ids, single, strict=False)) if a != b)
    assert not small_kernels() and gaps[place] < NEAR_TIE
