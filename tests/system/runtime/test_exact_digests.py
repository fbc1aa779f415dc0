"""The exact pass has the same bits on every machine: one SHA-256 per case."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import exact_digests
import pytest
from numpy._core import _multiarray_umath as multiarray

from gpt2np.kernels.array import Array

EXPECTED = json.loads(exact_digests.DIGESTS.read_text(encoding="utf-8"))
CASES = dict(exact_digests.cases())
QUICK = ["erf GELU: logits", "bundled: sampled", "bundled: scores"]


def test_every_case_has_a_digest() -> None:
    assert list(EXPECTED) == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_digest(name: str) -> None:
    compute: Callable[[], Iterator[Array]] = CASES[name]
    assert exact_digests.digest(compute()) == EXPECTED[name]


@pytest.mark.parametrize(
    "variables",
    [
        *({"OPENBLAS_CORETYPE": core} for core in ("Haswell", "Zen", "Sandybridge", "Prescott")),
        {"OPENBLAS_NUM_THREADS": "1"},
        {"OPENBLAS_NUM_THREADS": "3"},
        {"NPY_DISABLE_CPU_FEATURES": " ".join(multiarray.__cpu_dispatch__)},
    ],
    ids=str,
)
def test_digests_elsewhere(variables: dict[str, str]) -> None:
    program = (
        "import exact_digests as e, json, sys; cases = dict(e.cases()); "
        f"print(json.dumps({{name: e.digest(cases[name]()) for name in {QUICK}}}))"
    )
    folder = Path(exact_digests.__file__).parent
    environment = {**os.environ, **variables, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == {name: EXPECTED[name] for name in QUICK}
