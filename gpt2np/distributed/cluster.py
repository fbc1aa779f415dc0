"""The cluster of Ray that runs a job, and its workers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from gpt2np.errors import GPT2NPError, InvalidArgumentError, install_hint
from gpt2np.options import attributes_text, check_options, option


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster and its workers: actors, each with its own model.

    Raises:
        InvalidArgumentError: a value is out of its range.
    """

    address: str | None = option(
        None,
        "Share the work among workers on the Ray cluster at ADDRESS, or $RAY_ADDRESS",
        details="Without both, the cluster that runs on this machine is used; if none is running, "
        "one is started.",
        flags=("--ray",),
        metavar="ADDRESS",
    )
    workers: int | None = option(
        None,
        "Number of workers; each worker loads the model (for the encode command, only the "
        "vocabulary)",
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
        except UnicodeEncodeError as error:
            raise GPT2NPError(
                "Ray takes no path that is not UTF-8, neither on the command line nor as the "
                "current folder; give the path of a link"
            ) from error
        except (ValueError, ConnectionError, ray.exceptions.RayError) as error:
            reason = f"{error}".partition(". ")[0]  # Ray names a missing token only in its log
            raise GPT2NPError(
                f"cannot connect to Ray: {reason}; if the cluster has a token, copy "
                "~/.ray/auth_token from its first node, and set RAY_AUTH_MODE=token"
            ) from error

    def start_workers(self, worker_class: type, *arguments: Any) -> list[Any]:
        """Start the workers, actors that Ray restarts if they die, and return their handles.

        Raises InvalidArgumentError if the cluster has too few CPUs for a worker.
        """
        ray = import_ray()
        total = int(ray.cluster_resources().get("CPU", 1))
        if self.cpus_per_worker > total:
            raise InvalidArgumentError(
                f"cpus_per_worker is {self.cpus_per_worker}, but the cluster has {total} CPUs",
                param="cpus_per_worker",
            )
        threads = str(self.cpus_per_worker)
        # OpenBLAS reads the number of threads when NumPy is imported.
        variables = {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        actor = ray.remote(
            max_restarts=-1,
            max_task_retries=-1,
            num_cpus=self.cpus_per_worker,
            runtime_env={"env_vars": variables},
        )(worker_class)
        n_workers = self.workers or max(1, total // self.cpus_per_worker)
        return [actor.remote(*arguments) for _ in range(n_workers)]


Cluster.__doc__ = f"{Cluster.__doc__}\n{attributes_text(Cluster)}"


def import_ray() -> Any:
    """Import Ray, or raise a GPT2NPError that says how to install it."""
    try:
        import ray
    except ImportError as error:
        raise GPT2NPError(f"a cluster needs Ray; {install_hint('ray')}") from error
    return ray
