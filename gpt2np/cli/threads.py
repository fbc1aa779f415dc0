"""How many threads the matrix products may use; nothing here imports NumPy."""

import os

from gpt2np.errors import InvalidArgumentError

THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


IDLE_VARIABLE = "OPENBLAS_THREAD_TIMEOUT"
IDLE = "20"  # 2²⁰ cycles, a third of a millisecond


def let_idle_threads_sleep() -> None:
    """OpenBLAS's idle threads spin for 2²⁶ cycles by default, in the way of whoever else computes.

    It reads the variable once, when NumPy is imported. As it is a setting of the whole process,
    only the command line makes it, and not the library.
    """
    os.environ.setdefault(IDLE_VARIABLE, IDLE)


def set_threads(threads: int | None) -> None:
    """BLAS libraries read these once, when NumPy is imported: it must not have been yet."""
    if threads is None:
        return
    if threads < 1:
        raise InvalidArgumentError(f"--threads is {threads}; it must be at least 1")
    for variable in THREAD_VARIABLES:
        os.environ[variable] = str(threads)


def threads_in_use() -> int:
    """The number that the environment names, at most a thread for each CPU; else all CPUs."""
    set_to = (os.environ.get(variable, "") for variable in THREAD_VARIABLES)
    numbers = [int(value) for value in set_to if value.isdecimal() and int(value)]
    return min(numbers[0], usable_cpus()) if numbers else usable_cpus()


def usable_cpus() -> int:
    """The CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
