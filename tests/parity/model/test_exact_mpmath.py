"""Logits of the exact pass beside a pass in mpmath with 50 digits, which shares no code."""

import pytest
from exact_distance import compare, mpmath_logits, random_checkpoint


@pytest.mark.parametrize(
    "seed", [0, 4, 7, 8, 16, *(pytest.param(i, marks=pytest.mark.slow) for i in range(20, 120))]
)
def test_every_arg_max_is_mpmaths(seed: int) -> None:
    model, ids = random_checkpoint(seed)
    error, differing = compare(model, ids, mpmath_logits(model, ids))
    assert differing == 0
    assert 0 < error < 1e-10  # of the logits' root mean square
