"""`score`, `encode` and `generate` on a Ray cluster (extra `ray`).

    >>> import ray, gpt2np.distributed
    >>> ds = ray.data.read_parquet("s3://bucket/texts")
    >>> gpt2np.distributed.score(ds, model="bundled").write_parquet("s3://bucket/scores")

The functions add columns to a dataset. Ray schedules the work, restarts it after failures, and
writes the results and checkpoints.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from gpt2np.distributed.cluster import Cluster

if TYPE_CHECKING:
    from gpt2np.distributed.datasets import encode, generate, score

__all__ = ["Cluster", "encode", "generate", "score"]


def __getattr__(name: str) -> object:
    if name in __all__:  # imported on first use: the command line reads only the options
        return getattr(import_module(f"{__name__}.datasets"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
