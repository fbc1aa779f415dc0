"""`score`, `encode` and `generate` on a Ray cluster (extra `ray`).

    >>> import ray, gpt2np.distributed
    >>> ds = ray.data.read_parquet("s3://bucket/texts")
    >>> gpt2np.distributed.score(ds, model="bundled").write_parquet("s3://bucket/scores")

The functions add columns to a dataset; Ray schedules, restarts, writes and checkpoints.
"""

from gpt2np.distributed.datasets import encode, generate, score
from gpt2np.distributed.workers import Cluster

__all__ = ["Cluster", "encode", "generate", "score"]
