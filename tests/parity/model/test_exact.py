"""Logits of the exact pass beside passes in mpmath, in long double, and in Rust."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from exact_distance import compare, mpmath_logits, random_checkpoint
from helpers.paths import CHECKOUT
from record_bits import random_ids, random_model

import gpt2np
from gpt2np import GPT2
from gpt2np.model.gpt2 import gpt2
from gpt2np.model.plain import PlainContext, arrange_arrays

QUICK = {36, 65, 102}  # three activations; test_activations.py has each in float64


@pytest.mark.parametrize(
    "seed", [*QUICK, *(pytest.param(i, marks=pytest.mark.slow) for i in {*range(120)} - QUICK)]
)
def test_every_arg_max_is_mpmaths(seed: int) -> None:
    model, ids = random_checkpoint(seed)
    error, differing = compare(model, ids, mpmath_logits(model, ids))
    assert differing == 0
    assert 0 < error < 1e-10  # of the logits' root mean square


@pytest.mark.slow
@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="long double is float64 here")
def test_the_shape_of_gpt2_small() -> None:
    model, ids = random_model(vocab_size=5000, n_embd=768, n_head=12, n_layer=12), random_ids(6, 1)
    weights = {name: array.astype(np.longdouble) for name, array in model.weights.items()}
    right = gpt2(PlainContext(ids, model.config), arrange_arrays(model.config, weights))
    assert right.dtype == np.longdouble
    logits = GPT2(model.config, dict(model.weights), exact=True).forward([ids])
    assert np.array_equal(logits.argmax(-1), right.argmax(-1))
    assert 0 < np.abs(logits - right).max() / np.sqrt(np.mean(right * right)) < 1e-10


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("rustc") is None, reason="needs rustc")
def test_rust_has_the_same_bits(tmp_path: Path) -> None:
    source = CHECKOUT / "examples" / "exact_pass.rs"
    program = tmp_path / "exact_pass"
    subprocess.run(["rustc", "--edition", "2021", "-O", "-o", program, source], check=True)
    model = gpt2np.load("bundled", exact=True).model
    for name, array in model.weights.items():
        np.ascontiguousarray(array, "<f8").tofile(tmp_path / f"{name}.f64")
    for n in (1, 5, 70):
        ids = np.random.default_rng(n).integers(0, model.config.vocab_size, n).tolist()
        done = subprocess.run(
            [program, tmp_path, *map(str, ids)], stdout=subprocess.PIPE, check=True
        )
        assert done.stdout == model.forward([ids]).astype("<f8").tobytes()
