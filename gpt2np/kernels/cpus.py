"""How many CPU cores this process can keep busy at the same time.

This module does not import NumPy, because BLAS reads its thread count when NumPy is imported.
"""

import math
import os
from collections.abc import Iterator, Set
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath


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
    """Return this process's CPU quota, as set by containers, in CPUs; infinity without a quota.

    This is the smallest quota of the process's control groups and their parents; see cgroups(7).
    `root` is the folder with `proc/` and the mount points.
    """
    quota = math.inf
    with suppress(OSError):  # there is no /proc
        for folder in _cpu_cgroups(root):
            quota = min(quota, _quota(folder))
    return quota


def _cpu_cgroups(root: Path) -> Iterator[Path]:
    """Yield the folders of the process's CPU control groups and their visible parents."""
    paths = {}  # the path of the control group by controller; "" for version 2
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    for line in _lines(root / "proc/self/mountinfo"):
        mount, _, file_system = line.partition(" - ")
        kind, *_, options = file_system.split() or ("", "")
        is_v1 = kind == "cgroup" and "cpu" in options.split(",")
        if not (is_v1 or kind == "cgroup2"):
            continue
        mounted, mount_point = mount.split()[3:5]
        group = PurePosixPath(paths.get("cpu" if is_v1 else "", "/"))
        # In a container, the mounted part of the hierarchy can begin anywhere above the process.
        inside = group.relative_to(mounted) if group.is_relative_to(mounted) else PurePosixPath()
        top = root / mount_point.lstrip("/")
        yield from (top / part for part in (inside, *inside.parents))


def _lines(file: Path) -> list[str]:
    return os.fsdecode(file.read_bytes()).splitlines()  # paths can have any bytes


def _quota(cgroup: Path) -> float:
    """Return the CPU quota of one control group, in CPUs; infinity without a quota."""
    with suppress(OSError, ValueError):  # version 2; "max" is no number
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    with suppress(OSError, ValueError):  # version 1
        quota, period = (
            (cgroup / f"cpu.cfs_{name}_us").read_text(encoding="ascii")
            for name in ("quota", "period")
        )
        if int(quota) > 0:
            return int(quota) / int(period)
    return math.inf
