"""Fine-tuning on one page of text: the program of the process that a server starts for it.

The server writes the config, the page and the weights to stdin (`request_bytes`). For each step,
this process writes a line of JSON to stdout. `n_bytes` in a line is the size of the weights, as a
.safetensors file, which follow the line; 0 means no weights. To ask for another step, the server
writes a line. To stop, the server closes stdin, and receives the weights.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import BinaryIO

import numpy as np
from safetensors.numpy import load, save

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.kernels.array import Array, IntArray
from gpt2np.kernels.blas import single_threaded_blas
from gpt2np.training.adamw import AdamW, learning_rate
from gpt2np.training.options import TrainerOptions
from gpt2np.training.trainer import add_gradients

N_STEPS = 60
SNAPSHOTS = (3, 8, 20, N_STEPS)  # steps after which the server gets a copy of the weights
_LENGTH = 128  # tokens of a sequence
_OPTIONS = TrainerOptions(max_steps=N_STEPS, warmup_steps=5, weight_decay=0.0)


def teach(config: GPT2Config, weights: dict[str, Array], ids: IntArray) -> Iterator[float]:
    """Fine-tune weights on a text, in place; yield the loss before each step, and after the last.

    Each step trains on the whole text, cut into sequences at places that change from step to step,
    so that the model goes on from any place without the text before it. Losses are in nats per
    token.
    """
    optimizer = AdamW(weights)
    rng, length, last = np.random.default_rng(0), min(_LENGTH, config.n_positions), len(ids) - 1
    for step in range(N_STEPS + 1):
        cuts = [0, *range(int(rng.integers(1, length + 1)), last, length), last]
        sequences = [ids[i : j + 1] for i, j in zip(cuts[:-1], cuts[1:], strict=True)]
        gradients: dict[str, Array] = {}
        with single_threaded_blas(), np.errstate(all="ignore"):
            losses = add_gradients(config, weights, sequences, gradients, n_targets=last)
            yield float(losses.mean(dtype=np.float64))
            optimizer.update(gradients, learning_rate(step, _OPTIONS), _OPTIONS)


def request_bytes(config: GPT2Config, weights: Mapping[str, Array], ids: Sequence[int]) -> bytes:
    """Return a model and the token ids of a page, as `read_request` reads them."""
    data = save({name: np.ascontiguousarray(array, "f4") for name, array in weights.items()})
    page = {"config": asdict(config), "ids": list(ids), "n_bytes": len(data)}
    return json.dumps(page).encode() + b"\n" + data


def read_request(file: BinaryIO) -> tuple[GPT2Config, dict[str, Array], IntArray]:
    """Read a model and the token ids of a page."""
    page = json.loads(file.readline())
    page["config"]["eos_token_ids"] = tuple(page["config"]["eos_token_ids"])
    weights = load(file.read(page["n_bytes"]))  # read-only
    copies = {name: array.copy() for name, array in weights.items()}
    return GPT2Config(**page["config"]), copies, np.array(page["ids"])


def teach_stdin() -> None:
    """Teach the model of stdin; end quietly when nobody reads stdout any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the server, which ends this process
    if hasattr(os, "nice"):
        os.nice(10)  # the server's streams go first
    stdin = sys.stdin.buffer
    config, weights, ids = read_request(stdin)
    try:
        for step, loss in enumerate(teach(config, weights, ids)):
            _send(step, loss, weights if step in SNAPSHOTS else {})
            if step == N_STEPS:
                return None
            if not stdin.readline():
                return None if step in SNAPSHOTS else _send(step, loss, weights)
    except BrokenPipeError:
        os._exit(1)  # Python would try to write again


def _send(step: int, loss: float, weights: Mapping[str, Array]) -> None:
    """Write the line of a step to stdout, and the weights, if any."""
    data = save(dict(weights)) if weights else b""
    line = json.dumps({"step": step, "loss": loss, "n_bytes": len(data)})
    sys.stdout.buffer.write(line.encode() + b"\n" + data)
    sys.stdout.buffer.flush()
