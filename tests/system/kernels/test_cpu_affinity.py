"""The number of CPU cores under a real affinity."""

import os
import subprocess
import sys

import pytest

PRINT_CPUS = (
    "import sys; sys.stdin.readline();"
    "from gpt2np.kernels.cpus import usable_cpus; print(usable_cpus())"
)

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")


def count(prepare):
    process = subprocess.Popen(
        [sys.executable, "-c", PRINT_CPUS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    prepare(process.pid)
    stdout, _ = process.communicate("\n", timeout=60)
    return int(stdout)


def test_affinity():
    first = min(os.sched_getaffinity(0))
    assert count(lambda pid: os.sched_setaffinity(pid, {first})) == 1
