"""Runs of the fuzz targets: a short one that never varies, or `--minutes N` of random cases.

pytest tests/fuzz/test_fuzz_patterns.py --minutes 30
"""

import resource
import signal
import time
from contextlib import contextmanager
from functools import wraps
from pathlib import Path

import pytest
from helpers.random_models import save_byte_model
from hypothesis import HealthCheck, settings

from gpt2np import LanguageModel

LAST_CASE = Path(".hypothesis/last_case")
"""Start of the path of a file with the arguments of the current case, for a process that hangs."""

MAX_CPU_SECONDS = 20
MAX_NEW_MEMORY = 2 << 30  # bytes, of address space


def pytest_addoption(parser):
    parser.addoption("--minutes", type=float, help="run each fuzz target so long, on random cases")


def pytest_configure(config):
    if config.getoption("--minutes", None):
        settings.register_profile(
            "long",
            max_examples=1000,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        )
        settings.load_profile("long")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Limit and count the cases of a fuzz target; with --minutes, repeat the target."""
    minutes = pyfuncitem.config.getoption("--minutes", None)
    target = getattr(pyfuncitem.obj, "hypothesis", None)
    if target is None:
        return (yield)
    run_case, n_cases = target.inner_test, 0
    last_case = LAST_CASE.with_name(f"{LAST_CASE.name}_{pyfuncitem.name}")

    @wraps(run_case)
    def run_limited(**arguments):
        nonlocal n_cases
        n_cases += 1
        if minutes:
            last_case.write_text(repr(arguments), errors="backslashreplace")
        with limited_resources():
            run_case(**arguments)

    target.inner_test = run_limited
    names = pyfuncitem._fixtureinfo.argnames
    fixtures = {name: pyfuncitem.funcargs[name] for name in names}
    end = time.monotonic() + 60 * (minutes or 0)
    LAST_CASE.parent.mkdir(exist_ok=True)
    try:
        result = yield
        while time.monotonic() < end:
            print(f"{time.strftime('%H:%M:%S')} {pyfuncitem.name}: {n_cases:,} cases", flush=True)
            pyfuncitem.obj(**fixtures)
        return result
    finally:
        target.inner_test = run_case
        print(f"{time.strftime('%H:%M:%S')} {pyfuncitem.name}: {n_cases:,} cases in all")


@contextmanager
def limited_resources():
    """Raise TimeoutError or MemoryError in a case that exceeds its processor time or memory."""

    def stop(*_):
        raise TimeoutError(f"a case took more than {MAX_CPU_SECONDS} s of processor time")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + MAX_NEW_MEMORY
    handler = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory):
    """Folder of a tiny random model."""
    folder = tmp_path_factory.mktemp("byte_model")
    save_byte_model(folder)
    return folder


@pytest.fixture(scope="session")
def byte_lm(byte_model):
    """The model of `byte_model`."""
    return LanguageModel.load(byte_model)
