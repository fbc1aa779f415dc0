"""A cluster of Ray, and an ordered map over its workers."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from gpt2np.errors import GPT2NPError, InvalidArgumentError, install_hint
from gpt2np.options import attributes_text, check_options, option

Item = TypeVar("Item")
Result = TypeVar("Result")

_QUEUED_PER_WORKER = 2  # items that keep a worker busy
_FINISHED_PER_WORKER = 4  # results that may wait for an earlier one


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster and its workers: actors, each with its own model.

    Raises:
        InvalidArgumentError: a value is out of its range.
    """

    address: str | None = option(
        None,
        "Share the work among workers on a Ray cluster: at ADDRESS, else at $RAY_ADDRESS, else "
        "this machine's cluster, else a new one",
        flags=("--ray",),
        metavar="ADDRESS",
    )
    workers: int | None = option(
        None,
        "Number of worker processes; each loads what `model` selects",
        default_text="as many as the cluster's CPUs allow",
        low=1,
    )
    cpus_per_worker: int = option(
        1, "Number of CPUs to reserve for each worker; each worker runs N threads", low=1
    )

    def __post_init__(self) -> None:
        check_options(self)

    def connect(self) -> None:
        """Connect to the cluster, unless this process is connected already.

        Raises:
            GPT2NPError: Ray is not installed, no cluster has the address, or the cluster's
                token is missing.
        """
        ray = import_ray()
        if ray.is_initialized():
            return
        # A cluster that starts here: Ray's default, 15, gives way to every other process.
        os.environ.setdefault("RAY_worker_niceness", "0")
        try:
            ray.init(self.address, log_to_driver=False, logging_level="warning")
        except (ValueError, ConnectionError, ray.exceptions.RayError) as error:
            reason = f"{error}".partition(". ")[0]  # Ray names a missing token only in its log
            raise GPT2NPError(
                f"cannot connect to Ray: {reason}; if the cluster has a token, copy "
                "~/.ray/auth_token from its first node, and set RAY_AUTH_MODE=token"
            ) from error


Cluster.__doc__ = f"{Cluster.__doc__}\n{attributes_text(Cluster)}"


def import_ray() -> Any:
    """Import Ray, or raise a GPT2NPError that says how to install it."""
    try:
        import ray
    except ImportError as error:
        raise GPT2NPError(f"a cluster needs Ray; {install_hint('ray')}") from error
    return ray


def map_on_cluster(
    make_function: Callable[[], Callable[[Item], Result]],
    items: Iterable[Item],
    cluster: Cluster,
) -> Iterator[tuple[Item, Result]]:
    """Call a function on workers of a cluster; yield (item, result) in the order of the items.

    Each worker calls `make_function` once, for example to load a model. Ray restarts a worker that
    dies, and repeats its items. This process reads the items, a few ahead of the results.

    Raises:
        InvalidArgumentError: the cluster has too few CPUs for a worker.
        GPT2NPError: the function raises an exception, or Ray fails.
    """
    cluster.connect()
    ray = import_ray()
    function = ray.put(make_function)  # kept to the end, for workers that Ray restarts
    workers = _start_workers(cluster, function)
    free, busy = deque(workers * _QUEUED_PER_WORKER), dict[Any, Any]()
    queue: deque[tuple[Item, Any]] = deque()
    limit = _FINISHED_PER_WORKER * len(workers)

    def wait(references: list[Any]) -> None:
        for reference in ray.wait(references)[0]:
            free.append(busy.pop(reference))

    try:
        for item in items:
            if not free:
                wait([*busy])
            reference = free[0].call.remote(item)
            busy[reference] = free.popleft()
            queue.append((item, reference))
            while queue and (queue[0][1] not in busy or len(queue) > limit):
                first, reference = queue.popleft()
                yield first, ray.get(reference)
        yield from ((item, ray.get(reference)) for item, reference in queue)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None) or error
        *_, reason = f"{cause}".strip().splitlines()
        raise GPT2NPError(f"the work on Ray has failed: {reason.strip()}") from error
    finally:
        for actor in workers:
            ray.kill(actor)


class _Worker:
    """An actor that holds a function, such as one that uses a model."""

    def __init__(self, make_function: Callable[[], Callable[[Any], Any]]) -> None:
        self._function = make_function()

    def call(self, item: Any) -> Any:
        return self._function(item)


def _start_workers(cluster: Cluster, make_function: Any) -> list[Any]:
    """Start the workers, actors that Ray restarts if they die, and return their handles."""
    ray, n_cpus = import_ray(), cluster.cpus_per_worker
    total = int(ray.cluster_resources().get("CPU", 1))
    if n_cpus > total:
        raise InvalidArgumentError(
            f"cpus_per_worker is {n_cpus}, but the cluster has {total} CPUs",
            param="cpus_per_worker",
        )
    # OpenBLAS reads the number of threads when NumPy is imported.
    variables = {"OMP_NUM_THREADS": f"{n_cpus}", "OPENBLAS_NUM_THREADS": f"{n_cpus}"}
    actor = ray.remote(
        max_restarts=-1,
        max_task_retries=-1,
        num_cpus=n_cpus,
        runtime_env={"env_vars": variables},
    )(_Worker)
    return [actor.remote(make_function) for _ in range(cluster.workers or total // n_cpus)]
