"""What the tests share: the data, reference models, tables shown at the end of a run."""

import os
from collections import defaultdict
from pathlib import Path

# Threads without work are to sleep: by default OpenBLAS's spin in the way of torch's, and those in
# the way of all else. Both libraries read it once, when they are imported.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
from helpers.paths import CHECKOUT, DATA
from helpers.references import save_reference
from hypothesis import HealthCheck, settings

# The same examples in each run, however slow the machine: what fails fails again. For others:
# `pytest --hypothesis-profile default`.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")

_tables: dict[str, list[str]] = defaultdict(list)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of GPT-2's vocabulary, multilingual text and stories."""
    if not DATA.is_dir():
        pytest.skip(f"no test data at {DATA}; set GPT2NP_TEST_DATA to the folder that holds it")
    return DATA


@pytest.fixture(scope="session")
def gpt2_vocabulary(data: Path) -> Path:
    return data / "gpt2-tokenizer"


@pytest.fixture(scope="session")
def bundled() -> Path:
    return CHECKOUT / "weights"


@pytest.fixture
def show(request):
    """show(title, line): a line of a table that is printed when all tests are done."""
    return lambda title, line: _tables[title].append(line)


def pytest_terminal_summary(terminalreporter):
    for title, lines in _tables.items():
        terminalreporter.section(title)
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A folder with a tiny random model (V 211, context 48), and transformers' model of it."""
    folder = tmp_path_factory.mktemp("tiny")
    shape = {"vocab_size": 211, "n_positions": 48, "n_embd": 24, "n_layer": 3, "n_head": 3}
    return folder, save_reference(folder, spread=0.2, **shape)
