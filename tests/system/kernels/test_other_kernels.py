"""What depends on the BLAS library's routines, with those that this process doesn't use, too."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.paths import CHECKOUT

from gpt2np.kernels.blas import small_kernels

FILES = [
    "unit/kernels/test_matmul.py",
    "unit/kernels/test_linear.py",
    "parity/runtime/test_attention.py",
]
SLOW_FILES = ["system/runtime/test_invariance.py"]


def has_both():
    name = np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
    try:
        return "openblas" in name and " avx512vl " in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


@pytest.mark.skipif(not has_both(), reason="needs OpenBLAS, Linux and AVX-512")
@pytest.mark.parametrize("files", [FILES, pytest.param(SLOW_FILES, marks=pytest.mark.slow)])
def test_the_same_tests_with_other_routines(files):
    """OpenBLAS reads the variable when NumPy is imported, so that takes another process."""
    other = "Haswell" if small_kernels() else "SkylakeX"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *files],
        cwd=CHECKOUT / "tests",
        env={**os.environ, "OPENBLAS_CORETYPE": other},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    skipped = "no small-matrix kernels" in done.stdout
    assert skipped == small_kernels()  # those of the others were the ones that ran
