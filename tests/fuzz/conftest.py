"""Limits of the fuzz tests, and the profile `long` of random cases.

pytest -n0 tests/fuzz/test_fuzz_patterns.py --hypothesis-profile long
"""

import resource
import signal
from functools import wraps
from pathlib import Path

import pytest
from helpers.random_models import save_byte_model
from hypothesis import HealthCheck, settings

from gpt2np import LanguageModel

MAX_CPU_SECONDS = 20
MAX_NEW_MEMORY = 2 << 30  # bytes, of address space

settings.register_profile(
    "long",
    max_examples=100_000,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(autouse=True)
def limited_resources(request):
    """Raise TimeoutError or MemoryError in a case that exceeds its processor time or memory."""
    target = request.function.hypothesis
    run_case = target.inner_test

    @wraps(run_case)
    def run_limited(**arguments):
        signal.setitimer(signal.ITIMER_PROF, MAX_CPU_SECONDS)
        run_case(**arguments)

    def stop(*_):
        raise TimeoutError(f"a case took more than {MAX_CPU_SECONDS} s of processor time")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + MAX_NEW_MEMORY
    handler = signal.signal(signal.SIGPROF, stop)
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    target.inner_test = run_limited
    yield
    target.inner_test = run_case
    signal.setitimer(signal.ITIMER_PROF, 0)
    resource.setrlimit(resource.RLIMIT_AS, before)
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
