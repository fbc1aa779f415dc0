"""The exact pass has the same bits on every machine: one SHA-256 per case."""

import ast
import json
import math
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import exact_digests
import numpy as np
import pytest
from helpers.paths import CHECKOUT
from numpy._core import _multiarray_umath as multiarray

from gpt2np.kernels import exact
from gpt2np.kernels.array import Array

EXPECTED = json.loads(exact_digests.DIGESTS.read_text(encoding="utf-8"))
CASES = dict(exact_digests.cases())
SLOW = {f"{width}'s width: {part}" for width in ("GPT-2", "XL") for part in ("hooks", "logits")}
SLOW |= {name for name in CASES if name.startswith("bundled: ")}
SLOW -= {f"bundled: {name}" for name in ("beams", "regex", "log probabilities", "scores")}
QUICK = ["erf GELU: logits", "bundled: sampled", "bundled: scores"]


def test_every_case_has_a_digest() -> None:
    assert list(EXPECTED) == list(CASES) and CASES.keys() > SLOW


MACHINE_DEPENDENT = {
    np: "exp exp2 expm1 log log1p log2 log10 logaddexp sin cos tan sinh cosh tanh power cbrt "
    "dot vdot inner einsum tensordot",
    math: "exp expm1 log log1p log2 log10 pow sin cos tan sinh cosh tanh erf erfc gamma",
}
"""Functions whose last bits depend on the processor, on BLAS or on the C library."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in CASES]
)
def test_digest(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """BLAS can't round: it gets integers, whose sums in any order are integers below 2⁵³."""
    product, checked = np.matmul, deque[Array](maxlen=9)  # most slices have two products

    def matmul(x: Array, w: Array) -> Array:
        assert x.dtype == w.dtype == np.float64 and x.shape[-1] <= exact.BLOCK
        for slices in (x, w):
            if not any(slices is other for other in tuple(checked)):
                assert slices.min() >= -(2**21) and slices.max() <= 2**21
                assert (slices == np.rint(slices)).all()
                checked.append(slices)
        return product(x, w)

    monkeypatch.setattr(np, "matmul", matmul)
    for module, names in MACHINE_DEPENDENT.items():
        for function in names.split():
            monkeypatch.setattr(module, function, partial(pytest.fail, function))
    compute: Callable[[], Iterator[Array]] = CASES[name]
    assert exact_digests.digest(compute()) == EXPECTED[name]


def test_every_product_calls_matmul() -> None:
    """The operator @, which `test_digest` can't replace, is in no file of the pass or sampling."""
    patterns = "kernels/*.py", "runtime/*.py", "generation/*.py", "model/[gmow]*.py"
    files = [file for pattern in patterns for file in (CHECKOUT / "gpt2np").glob(pattern)]
    trees = [ast.walk(ast.parse(file.read_text(encoding="utf-8"))) for file in files]
    operators = {type(node) for tree in trees for node in tree if isinstance(node, ast.operator)}
    assert ast.Mult in operators and ast.MatMult not in operators


CORES = "Haswell", "Prescott", "Zen", "Sandybridge"
PLAIN_NUMPY = {"NPY_DISABLE_CPU_FEATURES": " ".join(multiarray.__cpu_dispatch__)}


@pytest.mark.parametrize(
    "variables",
    [
        {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_NUM_THREADS": "3"} | PLAIN_NUMPY,
        *(
            pytest.param(variables, marks=pytest.mark.slow)
            for variables in (PLAIN_NUMPY, *({"OPENBLAS_CORETYPE": core} for core in CORES))
        ),
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
    product = "import numpy as np; np.ones((512, 512)) @ np.ones((512, 512))"
    start = partial(subprocess.run, env=environment, capture_output=True, text=True)
    done = start([sys.executable, "-W", "ignore", "-c", program])
    if done.returncode < 0 and start([sys.executable, "-c", product]).returncode < 0:
        pytest.skip(f"with {variables}, NumPy crashes: OpenBLAS issue 6013")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {name: EXPECTED[name] for name in QUICK}
