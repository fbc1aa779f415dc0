"""Shared fixtures: test data, reference models."""

import gc
import os
import re
import signal
import sys
import tempfile
from functools import cache
from pathlib import Path

# Let idle threads sleep: by default, those of OpenBLAS and torch spin and slow each other down.
# Both libraries read the variables when they are imported.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Otherwise each process that a test starts would compile the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell that starts the tests in the background makes them, and the processes that they start,
# ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import numpy as np
import pytest
from helpers.paths import CHECKOUT, DATA
from helpers.references import load_reference
from helpers.stored_references import TINY
from hypothesis import HealthCheck, settings

from gpt2np import GPT2, LanguageModel, Trace, trace
from gpt2np.kernels.threads import usable_cpus

# Use the same examples in every run, so that failures are repeatable. For random examples:
# `pytest --hypothesis-profile default`.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")

sys.dont_write_bytecode = False  # for the tests, which pytest rewrites
gc.set_threshold(50_000)  # as in commands: the objects of vocabularies and modules are no garbage

TIERS = ("unit", "parity", "system")

# The tests of the core: the packages that all others are built on, and two commands. The import
# contract in pyproject.toml lists the packages.
CORE = (
    "unit/tokenizer",
    "unit/kernels",
    "unit/model",
    "unit/runtime",
    "unit/generation",
    "unit/test_against_references.py",
    "unit/test_everyday.py",
    "unit/test_imports.py",
    "unit/test_language_model.py",
    "unit/test_load.py",
    "system/cli/test_generate.py",
    "system/cli/test_tokenize.py",
)

# Skips that are no failures with the environment variable NO_SKIPS.
ALLOWED_SKIPS = (
    "root may read and write|cannot create a control group|AVX-512|no small-matrix"
    "|OpenBLAS issue 6013"
)


def pytest_ignore_collect(collection_path, config):
    """`pytest -m unit` and `-m core` import no other test; they need only the extra `dev`."""
    names = {"unit": ("unit",), "core": CORE}.get(config.option.markexpr)
    return not any(is_inside(collection_path, name) for name in names) or None if names else None


@cache
def is_inside(path, name) -> bool:
    """Tell whether a path is in tests/`name`, or is one of its parents."""
    wanted = CHECKOUT / "tests" / name
    return path.is_relative_to(wanted) or wanted.is_relative_to(path)


@pytest.fixture(autouse=True)
def restored_signals():
    """Restore what an interrupted test or a command left: blocked signals, a handler of Ctrl-C."""
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.name != "nt":
        signal.pthread_sigmask(signal.SIG_SETMASK, ())


@pytest.fixture(scope="session", autouse=True)
def no_fsync():
    """Let fsync return at once: no test cuts the power, and a busy disk takes long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


def may_read_all() -> bool:
    """Tell whether this user may read a file whose mode forbids it, like root."""
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).chmod(0)
        return os.access(file.name, os.R_OK)


def pytest_collection_modifyitems(items):
    """Mark each test with its tier, the folder in `tests`, and `core`; slow tests have neither."""
    for item in items:
        tier = item.path.relative_to(CHECKOUT / "tests").parts[0]
        if tier in TIERS and item.get_closest_marker("slow") is None:
            item.add_marker(tier)
            if any(is_inside(item.path, name) for name in CORE):
                item.add_marker("core")
        if item.get_closest_marker("permissions") and may_read_all():
            item.add_marker(pytest.mark.skip(reason="root may read and write all files"))
    gc.freeze()  # keeps the garbage collector off the modules and items


def pytest_sessionfinish(session):
    """With NO_SKIPS set, as by `.ci/run`, fail if a test is skipped that need not be."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    for report in reporter.stats.get("skipped", ()) if reporter else ():
        if os.environ.get("NO_SKIPS") and not re.search(ALLOWED_SKIPS, str(report.longrepr)):
            reporter.write_line(f"\nskipped in spite of NO_SKIPS: {report.longrepr}", red=True)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def data() -> Path:
    """Folder with GPT-2's vocabulary, multilingual text and stories."""
    if not DATA.is_dir():
        pytest.skip(f"no test data at {DATA}; set GPT2NP_TEST_DATA to the folder that holds it")
    return DATA


@pytest.fixture(scope="session")
def gpt2_vocabulary(data: Path) -> Path:
    return data / "gpt2-tokenizer"


@pytest.fixture(scope="session")
def bundled() -> Path:
    return CHECKOUT / "weights"


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    """The bundled model."""
    return LanguageModel.load("bundled")


def pytest_xdist_auto_num_workers(config):
    """One more than there are CPUs, since tests also wait for other processes.

    `pytest -m slow` runs one test at a time, because some take gigabytes.
    """
    return 1 if config.option.markexpr == "slow" else usable_cpus() + 1


@pytest.fixture(scope="session")
def tiny() -> tuple:
    """(folder of a tiny random model with V 211 and context 48, the same model of transformers)."""
    return TINY, load_reference(TINY)


@pytest.fixture(scope="module")
def model() -> GPT2:
    """The model of `tiny`."""
    return GPT2.from_folder(TINY)


@pytest.fixture(scope="module")
def traced(model) -> Trace:
    """All activations of `model` on 30 random ids."""
    return trace(model, np.random.default_rng(1).integers(0, 211, 30))
