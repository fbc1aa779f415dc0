"""Training steps in NumPy: forward and backward pass of drawn sequences, update of the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from gpt2np.checkpoint.config import GPT2Config, weight_shapes
from gpt2np.checkpoint.convert import write_checkpoint
from gpt2np.data.files import atomic_folder, atomic_write_text
from gpt2np.data.resumable import STATE, begin_task, file_stamp, new_file
from gpt2np.errors import GPT2NPError, InvalidArgumentError, check_argument
from gpt2np.kernels.array import Array, IntArray, raise_mmap_threshold
from gpt2np.kernels.blas import single_threaded_blas
from gpt2np.model.backward import gpt2_backward
from gpt2np.model.gpt2 import gpt2
from gpt2np.model.model import GPT2
from gpt2np.model.plain import arrange_arrays
from gpt2np.model.tape import Tape
from gpt2np.tokenizer import Tokenizer
from gpt2np.training.adamw import AdamW, learning_rate
from gpt2np.training.curve import loss_curve
from gpt2np.training.options import ARCHITECTURE, TrainerOptions


class Trainer:
    """A training run, whose state is saved in a work folder until the run ends.

    A run that is continued from its saved state gives the same weights as an uninterrupted run, to
    the bit. Step n trains on sequences that depend only on the seed and n.

    Attributes:
        weights: the weights by name.
        losses: the loss before each step, in nats per token.
        evaluations: (step, loss) of each evaluation.
        tokens_per_step: the number of tokens that a step trains on.
    """

    def __init__(
        self,
        corpus: Path,
        folder: Path,
        tokenizer: Tokenizer,
        options: TrainerOptions,
        *,
        model: GPT2 | None = None,
        eval_corpus: Path | None = None,
        force: bool = False,
    ) -> None:
        """Create a run, or load the saved state of an interrupted run.

        `corpus` is a file of token ids; `folder` has the saved state (`work_folder`), which `force`
        discards. Without `model`, a new model begins with random weights. The weights with the
        lowest loss on `eval_corpus` become the trained model.
        """
        raise_mmap_threshold()
        self._state_file, self._tokenizer, self._options = folder / STATE, tokenizer, options
        if model:
            self._config = model.config
        else:
            shape = {name: getattr(options, name) for name in ARCHITECTURE}
            eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
            self._config = GPT2Config(tokenizer.vocab_size, eos_token_ids=tuple(eos), **shape)
        self._length = options.block_size or self._config.n_positions
        n_positions = self._config.n_positions
        expected = f"at most {n_positions:,}, the tokens of the context"
        check_argument(self._length <= n_positions, "block_size", self._length, expected)
        size, n_passes = options.per_device_train_batch_size, options.gradient_accumulation_steps
        self.tokens_per_step = size * n_passes * self._length
        files = [corpus, *([eval_corpus] if eval_corpus else [])]
        self._ids, *self._eval_ids = [
            read_corpus(file, self._config.vocab_size, self._length) for file in files
        ]
        if force:
            self._state_file.unlink(missing_ok=True)
        fingerprints = {
            "the corpus": [file_stamp(file) for file in files],
            "the vocabulary": tokenizer.fingerprint,
            "the model": model.fingerprint if model else "",
        }
        has_work = self._state_file.exists()
        begin_task(folder, asdict(options) | fingerprints, has_work=has_work, force=force)
        self.weights = (
            {name: np.array(a, np.float32, order="C") for name, a in model.weights.items()}
            if model
            else new_weights(self._config, options.seed)
        )
        self._optimizer = AdamW(self.weights)
        self._best: dict[str, Array] = {}
        self._saved = {
            "weights": self.weights,
            "first": self._optimizer.first,
            "second": self._optimizer.second,
            "best": self._best,
        }
        self.losses: list[float] = []
        self.evaluations: list[tuple[int, float]] = []
        if has_work:
            self._load()

    @property
    def step(self) -> int:
        """Number of steps taken."""
        return self._optimizer.step

    @np.errstate(all="ignore")  # the loss shows infinity and NaN
    def take_step(self) -> float:
        """Take one training step. Returns the loss before the step, in nats per token."""
        options, step = self._options, self.step
        size = options.per_device_train_batch_size
        count = size * options.gradient_accumulation_steps
        rows = draw_sequences(self._ids, count, self._length, [options.seed, step])
        gradients: dict[str, Array] = {}
        loss = 0.0
        with single_threaded_blas():
            for start in range(0, count, size):
                batch = list(rows[start : start + size])
                losses = add_gradients(
                    self._config, self.weights, batch, gradients, n_targets=self.tokens_per_step
                )
                loss += float(losses.mean(dtype=np.float64)) / options.gradient_accumulation_steps
            self._optimizer.update(gradients, learning_rate(step, options), options)
        if not math.isfinite(loss):
            raise GPT2NPError(f"the loss of step {step + 1:,} is {loss}; lower the learning rate")
        self.losses.append(loss)
        return loss

    @property
    def evaluation_is_due(self) -> bool:
        """Whether `evaluate` should run: after every `eval_steps` steps, and after the last one."""
        is_last = self.step == self._options.max_steps
        is_due = self.step > 0 and (is_last or self.step % self._options.eval_steps == 0)
        return bool(self._eval_ids) and is_due and self.step not in dict(self.evaluations)

    @np.errstate(under="ignore")
    def evaluate(self) -> float:
        """Return the loss on the evaluation corpus; keep the weights with the lowest such loss."""
        [ids], size = self._eval_ids, self._options.per_device_train_batch_size
        w = arrange_arrays(self._config, self.weights)
        starts = np.arange(0, len(ids) - self._length, self._length)[:, None]
        losses = []
        with single_threaded_blas():
            for first in range(0, len(starts), size):
                places = starts[first : first + size] + np.arange(self._length + 1)
                rows = np.asarray(ids[places], np.int64)
                context = Tape(self._config, list(rows[:, :-1]), max_bytes=0)
                losses += [context.cross_entropy(gpt2(context, w), rows[:, 1:].reshape(-1))]
        loss = float(np.concatenate(losses).mean(dtype=np.float64))
        if all(loss < before for _, before in self.evaluations):
            self._best |= {name: array.copy() for name, array in self.weights.items()}
        self.evaluations.append((self.step, loss))
        return loss

    def save(self) -> None:
        """Save the state of the training, to continue the run later."""
        if self.step != len(self.losses):  # an exception has interrupted the step
            return
        arrays: dict[str, Any] = {
            f"{part}/{name}": array for part, a in self._saved.items() for name, array in a.items()
        }
        evaluations = np.array(self.evaluations).reshape(-1, 2)
        with new_file(self._state_file) as file:
            np.savez(file, losses=self.losses, evaluations=evaluations, **arrays)

    def _load(self) -> None:
        try:
            with np.load(self._state_file, allow_pickle=False) as file:
                self.losses = file["losses"].tolist()
                self.evaluations = [(int(s), loss) for s, loss in file["evaluations"].tolist()]
                for part, arrays in self._saved.items():
                    if part != "best" or self.evaluations:
                        arrays |= {name: file[f"{part}/{name}"] for name in self.weights}
        except (ValueError, KeyError, EOFError, BadZipFile) as error:
            raise GPT2NPError(
                f"{self._state_file} is damaged ({type(error).__name__}); force starts over"
            ) from error
        self._optimizer.step = len(self.losses)

    def finish(self, out: Path) -> None:
        """Write the model, its vocabulary and loss.svg to the folder `out`; remove the state."""
        weights = self._best or self.weights
        if not all(np.isfinite(array).all() for array in weights.values()):
            raise GPT2NPError("the last step's weights are not finite; lower the learning rate")
        with atomic_folder(out) as model:
            write_checkpoint(self._config, weights, model)
            self._tokenizer.save(model)
            atomic_write_text(model / "loss.svg", loss_curve(self.losses, self.evaluations))
        self._state_file.unlink()


def add_gradients(
    config: GPT2Config,
    weights: Mapping[str, Array],
    sequences: Sequence[IntArray],
    gradients: MutableMapping[str, Array],
    *,
    n_targets: int,
) -> Array:
    """Add the gradients of the loss of some sequences, divided by `n_targets`, to `gradients`.

    Returns the loss of each token after the first of its sequence, in nats.
    """
    w = arrange_arrays(config, weights)
    inputs = [ids[:-1] for ids in sequences]
    context = Tape(config, inputs, weight_gradients=gradients)
    logits, targets = gpt2(context, w), np.concatenate([ids[1:] for ids in sequences])
    losses: Array = context.cross_entropy(logits, targets, 1 / n_targets)
    gpt2_backward(context, w, logits)
    return losses


def new_weights(config: GPT2Config, seed: int) -> dict[str, Array]:
    """Return random weights in float32, as in GPT-2 (Radford et al. 2019, section 2.3).

    Matrices are normal with standard deviation 0.02; those whose results are added to the residual
    stream, 0.02 / √(2·n_layer). Biases are 0, and the weights of layer norms 1.
    """
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in weight_shapes(config).items():
        if len(shape) == 2:
            depth = 2 * config.n_layer if name.endswith("c_proj.weight") else 1
            weights[name] = rng.standard_normal(shape, np.float32) * np.float32(0.02 / depth**0.5)
        else:
            weights[name] = np.full(shape, float(name.endswith(".weight")), np.float32)
    return weights


def read_corpus(path: Path, vocab_size: int, length: int) -> NDArray[Any]:
    """Map a file of token ids, .bin or .npy, into memory, and check the ids."""
    try:
        if path.suffix.lower() == ".npy":
            ids: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
        elif path.suffix.lower() == ".bin":
            ids = np.memmap(path, np.uint16 if vocab_size <= 1 << 16 else np.uint32, "r")
        else:
            raise ValueError("its name ends in neither .bin nor .npy; first encode the texts")
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise ValueError(f"it has numbers {ids.dtype} {ids.shape}, not a list of integers")
    except ValueError as error:
        raise InvalidArgumentError(f"{path} is not a corpus from gpt2np encode: {error}") from error
    if len(ids) <= length:
        message = f"sequences of {length:,} tokens need more; set a smaller `block_size`"
        raise InvalidArgumentError(f"{path} has {len(ids):,} ids; {message}")
    if not 0 <= ids.min() <= ids.max() < vocab_size:
        raise InvalidArgumentError(
            f"{path} has ids from {ids.min()} to {ids.max()}, but the vocabulary has 0 to "
            f"{vocab_size - 1}; choose the vocabulary that the corpus was encoded with"
        )
    return ids


def draw_sequences(ids: Any, count: int, length: int, seed: list[int]) -> IntArray:
    """Draw sequences of ids at random places. Returns (count, length + 1) token ids."""
    starts = np.random.default_rng(seed).integers(0, len(ids) - length, count)
    return np.asarray(ids[starts[:, None] + np.arange(length + 1)], np.int64)
