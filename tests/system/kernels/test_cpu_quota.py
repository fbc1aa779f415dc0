"""The number of CPU cores under a real quota and a real affinity."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
PRINT_CPUS = (
    "import sys; sys.stdin.readline();"
    "from gpt2np.kernels.cpus import usable_cpus; print(usable_cpus())"
)

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")


@contextmanager
def control_group(cpus):
    """Yield the file that takes process ids, of a nested group; its parent has the limit."""
    is_v1 = (V1 / "cpu.cfs_quota_us").exists()
    parent = (V1 if is_v1 else V2) / f"gpt2np-test-{os.getpid()}"
    child = parent / "child"
    try:
        parent.mkdir()
        child.mkdir()
        limits = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": f"{int(cpus * 1e5)}"}
        for file, value in (limits if is_v1 else {"cpu.max": f"{int(cpus * 1e5)} 100000"}).items():
            (parent / file).write_text(value)
    except OSError as error:
        _remove(child, parent)
        pytest.skip(f"cannot create a control group: {error}")
    try:
        yield child / "cgroup.procs"
    finally:
        _remove(child, parent)


def _remove(*folders):
    for folder in folders:
        for _ in range(100):  # an ended process leaves its group a moment later
            with suppress(FileNotFoundError):
                try:
                    folder.rmdir()
                except OSError:
                    time.sleep(0.01)
                    continue
            break


def count(prepare):
    process = subprocess.Popen(
        [sys.executable, "-c", PRINT_CPUS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    prepare(process.pid)
    stdout, _ = process.communicate("\n", timeout=60)
    return int(stdout)


@pytest.mark.parametrize(("cpus", "expected"), [(0.5, 1), (1, 1), (1.5, 2)])
def test_quota_of_the_parent_group(cpus, expected):
    most = count(lambda pid: None)
    with control_group(cpus) as processes:
        assert count(lambda pid: processes.write_text(str(pid))) == min(expected, most)


def test_affinity():
    first = min(os.sched_getaffinity(0))
    assert count(lambda pid: os.sched_setaffinity(pid, {first})) == 1
