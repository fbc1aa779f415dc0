"""Actors of Ray Data that each hold a model, and an ordered map over these actors."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gpt2np.errors import GPT2NPError, InvalidArgumentError, check_argument, install_hint

if TYPE_CHECKING:
    from ray.data import Dataset

Item = TypeVar("Item")
Result = TypeVar("Result")

_BLOCK_BYTES = 1  # each item is a block: a block is the unit of work, and of work that is lost


@dataclass(frozen=True)
class Cluster:
    """The cluster and its workers, which are actors with a model each.

    Attributes:
        address: address of a cluster, as for `ray.init`; None uses RAY_ADDRESS, or a cluster that
            runs on this machine, or starts one.
        workers: number of workers (default: as many as the cluster has CPUs for).
        cpus_per_worker: CPUs, and threads, of each worker.
    """

    address: str | None = None
    workers: int | None = None
    cpus_per_worker: int = 1

    def __post_init__(self) -> None:
        for name in ("workers", "cpus_per_worker"):
            value = getattr(self, name)
            check_argument(value is None or value >= 1, name, value, "at least 1")

    def connect(self) -> None:
        """Connect to the cluster, unless this process is connected already.

        Raises:
            GPT2NPError: Ray is not installed, no cluster has the address, or its token is missing.
        """
        ray = _import_ray()
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        if ray.is_initialized():
            return
        # A cluster that starts here: Ray's default, 15, gives way to every other process.
        os.environ.setdefault("RAY_worker_niceness", "0")
        try:
            ray.init(self._reachable_address(), log_to_driver=False, logging_level="warning")
        except ValueError as error:
            raise GPT2NPError(f"cannot connect to Ray: {error}") from error
        except (ConnectionError, ray.exceptions.RayError) as error:
            reason = f"{error}".partition(". ")[0]  # Ray names a missing token only in its log
            raise GPT2NPError(
                f"cannot connect to Ray: {reason}; if the cluster has a token, copy "
                "~/.ray/auth_token from its first node, and set RAY_AUTH_MODE=token"
            ) from error

    def _reachable_address(self) -> str | None:
        """Return the address for `ray.init`, which would wait for a cluster that has been killed.

        Raises:
            GPT2NPError: nothing listens at the address.
        """
        address = self.address or os.environ.get("RAY_ADDRESS")
        known = address
        if address in (None, "auto"):  # Ray reads the address of this machine's last cluster
            temporary = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())
            file = temporary / "ray" / "ray_current_cluster"
            known = file.read_text(encoding="utf-8").strip() if file.is_file() else None
        if known is None or ":" not in known or "://" in known:
            return address
        host, _, port = known.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except OSError as error:
            if address is None:
                return "local"
            raise GPT2NPError(
                f"cannot connect to Ray: no cluster runs at {known} ({error}); start one with: "
                "ray start --head"
            ) from error
        return address

    def actor_options(self, n_reserved: int = 0) -> dict[str, Any]:
        """Return the arguments of `Dataset.map_batches` for the workers.

        The workers leave `n_reserved` CPUs to other tasks.

        Raises:
            InvalidArgumentError: the cluster has too few CPUs.
        """
        ray = _import_ray()
        total = int(ray.cluster_resources().get("CPU", 1))
        if self.cpus_per_worker > total:
            raise InvalidArgumentError(
                f"cpus_per_worker is {self.cpus_per_worker}, but the cluster has {total} CPUs"
            )
        n_workers = self.workers or max(1, (total - n_reserved) // self.cpus_per_worker)
        if n_reserved and n_workers * self.cpus_per_worker > total - n_reserved:
            raise InvalidArgumentError(
                f"workers is {n_workers}, with {self.cpus_per_worker} CPUs each, but the cluster "
                f"has {total} CPUs, of which reading and writing needs {n_reserved}"
            )
        threads = str(self.cpus_per_worker)
        # OpenBLAS reads the number of threads when NumPy is imported.
        variables = {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        return {
            "compute": ray.data.ActorPoolStrategy(size=n_workers),
            "num_cpus": self.cpus_per_worker,
            "runtime_env": {"env_vars": variables},
        }


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
    ray = _import_ray()
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


def _import_ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise GPT2NPError(f"a cluster needs Ray; {install_hint('ray')}") from error
    return ray
