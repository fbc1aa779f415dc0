"""The exact numbers are defined well enough: examples/exact_pass.rs has the same bits."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from helpers.paths import CHECKOUT

import gpt2np

RUSTC = shutil.which("rustc")


@pytest.mark.slow
@pytest.mark.skipif(RUSTC is None, reason="needs rustc")
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
