"""examples/forward_in_60_lines.py computes the package's logits and greedy text."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
from helpers.paths import CHECKOUT

FILE = CHECKOUT / "examples" / "forward_in_60_lines.py"
PROMPT = "Once upon a time, there wasn't  a king's\n\n7 sons"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("forward_in_60_lines", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_at_most_60_lines_without_the_package():
    lines = FILE.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 60 and max(map(len, lines)) <= 100
    imported = {
        line.split()[1].split(".")[0] for line in lines if line.startswith(("from ", "import "))
    }
    assert imported - sys.stdlib_module_names == {"numpy", "safetensors"}


def test_ids_and_logits_are_those_of_the_package(example, lm):
    text = PROMPT + " The fox's tail! \"Oh--no,\" 'it'll don't\t\t ran.   "
    ids = example.encode(text)
    assert ids == lm.tokenizer.encode(text)
    logits, expected = example.forward(ids), lm.model.forward([ids])
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, expected, atol=2e-4)


def test_its_greedy_text_is_that_of_the_package(lm):
    command = [sys.executable, str(FILE), PROMPT, "24"]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # threads slow such small products
    result = subprocess.run(command, capture_output=True, env=environment, check=True)
    expected = PROMPT + lm.generate(PROMPT, temperature=0, max_new_tokens=24).text
    assert result.stdout.decode().replace("\r\n", "\n") == expected + "\n"
