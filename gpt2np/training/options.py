"""Hyperparameters, with the names of `transformers`' GPT2Config and TrainingArguments."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from gpt2np.errors import InvalidArgumentError
from gpt2np.options import attributes_text, check_options, option

ARCHITECTURE = ("n_layer", "n_head", "n_embd", "n_positions")
"""Options that only a new model needs; a model to fine-tune has its own architecture."""

_MAX_BLOCKS = 1000  # listing the weights of more would take long, before memory runs out
_MAX_SIZE = 1_000_000  # NumPy can count the numbers of arrays of these sizes, below 2⁶³

_architecture = partial(option, group="Architecture")
_training = partial(option, group="Training")
_evaluation = partial(option, group="Evaluation")


@dataclass(frozen=True)
class TrainerOptions:
    """Hyperparameters of a model and of its training.

    The learning rate rises linearly for `warmup_steps` steps to `learning_rate`, and then falls to
    zero along a cosine.
    """

    n_layer: int = _architecture(6, "Number of blocks", low=1, high=_MAX_BLOCKS)
    n_head: int = _architecture(4, "Number of attention heads per block", low=1)
    n_embd: int = _architecture(
        256, "Width of the residual stream, a multiple of `n_head`", low=1, high=_MAX_SIZE
    )
    n_positions: int = _architecture(512, "Context length in tokens", low=1, high=_MAX_SIZE)
    max_steps: int = _training(10_000, "Number of training steps", low=1)
    block_size: int | None = _training(
        None, "Tokens per training sequence (default: the context length)", low=1
    )
    per_device_train_batch_size: int = _training(8, "Sequences per pass", low=1, high=_MAX_SIZE)
    gradient_accumulation_steps: int = _training(
        1, "Forward and backward passes per step; the gradients are added", low=1, high=_MAX_SIZE
    )
    learning_rate: float = _training(1e-3, "Peak learning rate of AdamW", low=0)
    warmup_steps: int = _training(
        100, "Number of steps until the learning rate reaches its peak", low=0
    )
    weight_decay: float = _training(0.1, "Decoupled weight decay of matrices and embeddings", low=0)
    max_grad_norm: float = _training(
        1.0, "Maximum norm of the gradients; larger gradients are scaled down to this norm", above=0
    )
    seed: int = _training(0, "Seed for initial weights and the choice of training sequences", low=0)
    eval_steps: int = _evaluation(
        500, "Number of training steps between two evaluations on the evaluation corpus", low=1
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.n_embd % self.n_head:
            raise InvalidArgumentError(
                f"n_embd is {self.n_embd}; it must be a multiple of n_head, {self.n_head}",
                param="n_embd",
            )


TrainerOptions.__doc__ = f"{TrainerOptions.__doc__}\n{attributes_text(TrainerOptions)}"
