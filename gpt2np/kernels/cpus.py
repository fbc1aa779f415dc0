"""How many CPU cores this process can keep busy at the same time.

This module does not import NumPy, because BLAS reads its thread count when NumPy is imported.
"""

import math
import os
from collections.abc import Set
from contextlib import suppress
from functools import cache
from pathlib import Path


def usable_cpus() -> int:
    """Return how many CPU cores this process can keep busy at the same time; at least 1.

    On Linux, this is the number of physical cores in the process's CPU affinity, or the CPU quota
    of its control groups (cgroups) if smaller.
    """
    if hasattr(os, "sched_getaffinity"):
        return _count_cores(Path("/"), frozenset(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


@cache
def _count_cores(root: Path, affinity: Set[int]) -> int:
    if len(affinity) == 1 or (quota := cgroup_quota(root)) <= 1:
        return 1
    return math.ceil(min(quota, physical_cores(root, affinity)))


def physical_cores(root: Path, cpus: Set[int]) -> int:
    """Count the physical cores of logical CPUs; a CPU of unknown topology counts as one core.

    `root` is the folder with `sys/`.
    """
    cores: set[str | int] = set()
    for cpu in cpus:
        file = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            cores.add(file.read_text(encoding="ascii"))
        except OSError:
            cores.add(cpu)
    return len(cores)


def cgroup_quota(root: Path) -> float:
    """Return the CPU quota of the control group (cgroup v2) in CPUs; infinity without a quota.

    This is the quota of the group that is mounted at the usual place: in a container, the
    container's. `root` is the folder with `sys/`.
    """
    file = root / "sys/fs/cgroup/cpu.max"
    with suppress(OSError, ValueError):  # "max" is no number
        quota, period = file.read_text(encoding="ascii").split()
        return int(quota) / int(period)
    return math.inf
