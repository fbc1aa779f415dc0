"""An ordered map over actors of a Ray cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from gpt2np.distributed.cluster import Cluster, import_ray
from gpt2np.errors import GPT2NPError

Item = TypeVar("Item")
Result = TypeVar("Result")

_QUEUED_PER_WORKER = 2  # items that keep a worker busy
_FINISHED_PER_WORKER = 4  # results that may wait for an earlier one


def map_on_cluster(
    make_function: Callable[[], Callable[[Item], Result]],
    items: Iterable[Item],
    cluster: Cluster,
) -> Iterator[tuple[Item, Result]]:
    """Call a function on workers of a cluster; yield (item, result) in the order of the items.

    Each worker calls `make_function` once, for example to load a model. Ray restarts a worker that
    dies, and repeats its items. This process reads the items, a few ahead of the results.

    Raises:
        GPT2NPError: the function raises an exception, or Ray fails.
    """
    cluster.connect()
    ray = import_ray()
    workers = cluster.start_workers(_Worker, ray.put(make_function))
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
