"""The cluster of Ray that runs a job, and its workers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
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
        "Share the work among workers on the Ray cluster at ADDRESS. Without ADDRESS, use the "
        "cluster at $RAY_ADDRESS. If this variable is not set, use the cluster that runs on this "
        "machine, or start a new cluster if none is running",
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
        import logging

        ray = import_ray()
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        if ray.is_initialized():
            return
        # A cluster that starts here: Ray's default, 15, gives way to every other process.
        os.environ.setdefault("RAY_worker_niceness", "0")
        try:
            ray.init(self._reachable_address(), log_to_driver=False, logging_level="warning")
        except UnicodeEncodeError as error:
            raise GPT2NPError(
                "Ray takes no path that is not UTF-8, neither on the command line nor as the "
                "current folder; give the path of a link"
            ) from error
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

        If nothing listens at the address, raises GPT2NPError.
        """
        import socket
        import tempfile

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
        """
        ray = import_ray()
        total = int(ray.cluster_resources().get("CPU", 1))
        if self.cpus_per_worker > total:
            raise InvalidArgumentError(
                "{cpus_per_worker} is {cpus_per_worker.value}, but the cluster has {0} CPUs",
                total,
                cpus_per_worker=self.cpus_per_worker,
            )
        n_workers = self.workers or max(1, (total - n_reserved) // self.cpus_per_worker)
        if n_reserved and n_workers * self.cpus_per_worker > total - n_reserved:
            raise InvalidArgumentError(
                "{workers} is {workers.value}, with {0} CPUs each, but the cluster has {1} CPUs, "
                "of which reading and writing needs {2}",
                self.cpus_per_worker,
                total,
                n_reserved,
                workers=n_workers,
            )
        threads = str(self.cpus_per_worker)
        # OpenBLAS reads the number of threads when NumPy is imported.
        variables = {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        return {
            "compute": ray.data.ActorPoolStrategy(size=n_workers),
            "num_cpus": self.cpus_per_worker,
            "runtime_env": {"env_vars": variables},
        }


Cluster.__doc__ = f"{Cluster.__doc__}\n{attributes_text(Cluster)}"


def import_ray() -> Any:
    """Import Ray, or raise a GPT2NPError that says how to install it."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise GPT2NPError(f"a cluster needs Ray; {install_hint('ray')}") from error
    return ray
