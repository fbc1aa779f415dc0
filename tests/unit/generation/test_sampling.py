"""Sampled ids follow the exact distribution, and depend on the seed alone."""

import math
from functools import partial

import numpy as np
import pytest

from gpt2np import GenerationOptions
from gpt2np.generation.sampling import (
    RandomGenerator,
    next_id,
    next_probabilities,
    top_k_candidates,
)

SETTINGS = {
    "plain": {"top_k": 0, "temperature": 1.0},
    "cold": {"top_k": 0, "temperature": 0.5},
    "hot": {"top_k": 0, "temperature": 2.0},
    "top-k": {"top_k": 5, "temperature": 1.0},
    "top-p": {"top_k": 0, "top_p": 0.8, "temperature": 1.0},
    "min-p": {"top_k": 0, "min_p": 0.1, "temperature": 1.0},
    "typical": {"top_k": 0, "typical_p": 0.7, "temperature": 1.0},
    "all": {"top_k": 9, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.9, "temperature": 0.8},
}
LOGITS = np.random.default_rng(17).normal(0, 1.5, 16)


def exact(setting):
    """Return the exact distribution by definition, in float64."""
    p = np.exp(LOGITS / setting["temperature"])
    p /= p.sum()
    kept = np.full(len(p), True)

    def keep(mask):
        nonlocal p
        kept[:] &= mask
        p = np.where(kept, p, 0)
        p /= p.sum()

    if setting["top_k"]:
        keep(p >= np.sort(p)[-setting["top_k"]])
    if "top_p" in setting:
        order = np.argsort(-p)
        before = np.cumsum(p[order]) - p[order]
        keep(np.isin(np.arange(len(p)), order[before < setting["top_p"]]))
    if "min_p" in setting:
        keep(p >= setting["min_p"] * p.max())
    if "typical_p" in setting:
        surprise = -np.log(np.where(kept, p, 1))
        distance = np.where(kept, np.abs(surprise - (p * surprise).sum()), np.inf)
        order = np.argsort(distance)
        before = np.cumsum(p[order]) - p[order]
        keep(np.isin(np.arange(len(p)), order[before < setting["typical_p"]]))
    return p


def p_value(setting, draws, seed):
    """Return the p-value of a chi-square test (Wilson and Hilferty's approximation)."""
    options, rng = GenerationOptions(**setting), RandomGenerator(seed)
    logits = LOGITS.astype(np.float32)
    sampled = [next_id(logits, options, partial(rng.number, i)) for i in range(draws)]
    counts = np.bincount(sampled, minlength=len(LOGITS))
    expected = exact(setting) * draws
    possible = expected > 0
    assert not counts[~possible].any()
    freedom = possible.sum() - 1
    chi_square = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    z = ((chi_square / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return 0.5 * math.erfc(z / math.sqrt(2))


@pytest.mark.parametrize("draws", [10_000, pytest.param(200_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("setting", SETTINGS)
def test_draws_follow_the_distribution_by_chi_square(setting, draws, show):
    p = p_value(SETTINGS[setting], draws, seed=1)
    show("chi-square test of the filters", f"{setting}, {draws:,} draws: p = {p:.3f}")
    assert p > 1e-3


def test_a_wrong_distribution_is_found():
    """The chi-square test rejects ids sampled at another temperature."""
    setting = SETTINGS["plain"]
    options, rng = GenerationOptions(top_k=0, temperature=1.05), RandomGenerator(1)
    logits = LOGITS.astype(np.float32)
    sampled = [next_id(logits, options, partial(rng.number, i)) for i in range(20_000)]
    expected = exact(setting) * 20_000
    chi_square = ((np.bincount(sampled, minlength=16) - expected) ** 2 / expected).sum()
    assert chi_square > 60


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 100.0])
@pytest.mark.parametrize("size", [3, 700, 5000])
def test_top_k_candidates_change_no_sampled_id(size, scale):
    rng = np.random.default_rng(size)
    for top_k, temperature in ((1, 0.3), (5, 1.0), (40, 7.0), (size, 0.8)):
        options = GenerationOptions(top_k=top_k, temperature=temperature)
        for _ in range(20):
            logits = rng.normal(5, scale, size).astype(np.float32).round(rng.integers(1, 8))
            logits[rng.random(size) < rng.choice([0, 0.1, 0.99])] = -math.inf
            logits[-1] = logits.max() if math.isfinite(logits.max()) else 0
            kept = np.flatnonzero(next_probabilities(logits, options))
            assert np.isin(kept, top_k_candidates(logits, top_k)).all()
            cumulative = next_probabilities(logits, options)[kept].cumsum()
            x = rng.random()
            expected = kept[cumulative.searchsorted(x * cumulative[-1], side="right")]
            assert next_id(logits, options, lambda x=x: x) == expected
    assert size < 5000 or scale < 1 or len(top_k_candidates(logits, 5)) < size / 10
