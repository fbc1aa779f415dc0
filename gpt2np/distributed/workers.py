"""Actors of Ray Data that each hold a model, and an ordered map over these actors."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from gpt2np.distributed.cluster import Cluster, import_ray
from gpt2np.errors import GPT2NPError

if TYPE_CHECKING:
    from ray.data import Dataset

Item = TypeVar("Item")
Result = TypeVar("Result")

_BLOCK_BYTES = 1  # each item is a block: a block is the unit of work, and of work that is lost


def map_on_cluster(
    readers: Sequence[Callable[[], Iterable[Item]]],
    make_function: Callable[[], Callable[[Item], Result]],
    cluster: Cluster,
) -> Iterator[tuple[Item, Result]]:
    """Call a function on workers of a cluster; yield (item, result) in the order of the items.

    Each reader yields some consecutive items, on any node. `make_function` is called once by each
    worker, for example to load a model. Ray repeats the items of a worker that dies.

    Raises:
        GPT2NPError: a reader or the function raises an exception, or Ray fails.
    """
    cluster.connect()
    ray = import_ray()
    context = ray.data.DataContext.get_current().copy()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.target_max_block_size = _BLOCK_BYTES
    with ray.data.DataContext.current(context):
        dataset = _read_items(readers).map_batches(
            _Worker,
            fn_constructor_args=[make_function],
            batch_size=1,
            batch_format="pyarrow",
            **cluster.actor_options(),
        )
        try:
            for row in dataset.iter_rows():
                yield pickle.loads(row["item"]), pickle.loads(row["result"])
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            *_, reason = f"{cause}".strip().splitlines()
            raise GPT2NPError(f"the work on Ray has failed: {reason.strip()}") from error


def _read_items(readers: Sequence[Callable[[], Iterable[Any]]]) -> Dataset:
    import ray
    from ray.data.block import BlockMetadata
    from ray.data.datasource import Datasource, ReadTask

    class Items(Datasource):
        """One read task for each reader; a row holds a pickled item."""

        def get_read_tasks(self, parallelism: int, *_: object, **__: object) -> list[ReadTask]:
            metadata = BlockMetadata(None, None, None)
            return [ReadTask(partial(_blocks, reader), metadata) for reader in readers]

        def estimate_inmemory_data_size(self) -> int | None:
            return None

    # The workers may take all CPUs.
    n_blocks = len(readers)
    dataset: Dataset = ray.data.read_datasource(Items(), num_cpus=0, override_num_blocks=n_blocks)
    return dataset


def _blocks(reader: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    import pyarrow

    for item in reader():
        yield pyarrow.table({"item": [pickle.dumps(item)]})


class _Worker:
    def __init__(self, make_function: Callable[[], Callable[[Any], Any]]) -> None:
        self._function = make_function()

    def __call__(self, rows: Any) -> Any:
        import pyarrow

        items = rows["item"].to_pylist()
        results = [pickle.dumps(self._function(pickle.loads(item))) for item in items]
        return pyarrow.table({"item": items, "result": results})
