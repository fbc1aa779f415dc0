"""The memory limit of the fuzz tests, and the profile `long` of random cases.

pytest -n0 tests/fuzz/test_fuzz_patterns.py --hypothesis-profile long
"""

import resource
from pathlib import Path

import pytest
from helpers.random_models import save_byte_model
from hypothesis import HealthCheck, settings

from gpt2np import LanguageModel

MAX_NEW_MEMORY = 2 << 30  # bytes, of address space

settings.register_profile(
    "long",
    max_examples=100_000,
    deadline=20_000,  # milliseconds of a case
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(autouse=True)
def limited_memory():
    """Raise MemoryError in a case that takes much memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + MAX_NEW_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


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
