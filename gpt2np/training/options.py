"""Hyperparameters, with the names of `transformers`' GPT2Config and TrainingArguments."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from gpt2np.errors import InvalidArgumentError
from gpt2np.options import Integer, Number, attributes_text, check_options, option

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

    Raises:
        InvalidArgumentError: a value is out of its range, or `n_embd` is not a multiple of
            `n_head`.
    """

    n_layer: int = _architecture(6, Integer(1, _MAX_BLOCKS), "Number of blocks")
    n_head: int = _architecture(4, Integer(1), "Number of attention heads per block")
    n_embd: int = _architecture(
        256, Integer(1, _MAX_SIZE), "Width of the residual stream, a multiple of {n_head}"
    )
    n_positions: int = _architecture(512, Integer(1, _MAX_SIZE), "Context length in tokens")
    max_steps: int = _training(10_000, Integer(1), "Number of training steps")
    block_size: int | None = _training(
        None,
        Integer(1, is_optional=True),
        "Tokens per training sequence (default: the context length)",
    )
    per_device_train_batch_size: int = _training(8, Integer(1, _MAX_SIZE), "Sequences per pass")
    gradient_accumulation_steps: int = _training(
        1, Integer(1, _MAX_SIZE), "Forward and backward passes per step; the gradients are added"
    )
    learning_rate: float = _training(1e-3, Number(0), "Peak learning rate of AdamW")
    warmup_steps: int = _training(
        100, Integer(0), "Number of steps until the learning rate reaches its peak"
    )
    weight_decay: float = _training(
        0.1, Number(0), "Decoupled weight decay of matrices and embeddings"
    )
    adam_beta1: float = _training(
        0.9, Number(0, 1), "Decay rate of the moving average of the gradients in AdamW"
    )
    adam_beta2: float = _training(
        0.95, Number(0, 1), "Decay rate of the moving average of the squared gradients in AdamW"
    )
    adam_epsilon: float = _training(
        1e-8, Number(0, is_open=True), "Constant added to AdamW's denominator"
    )
    max_grad_norm: float = _training(
        1.0,
        Number(0, is_open=True),
        "Maximum norm of the gradients; larger gradients are scaled down to this norm",
    )
    embd_pdrop: float = _training(0.0, Number(0, 0.99), "Dropout probability of embeddings")
    attn_pdrop: float = _training(0.0, Number(0, 0.99), "Dropout probability of attention patterns")
    resid_pdrop: float = _training(
        0.0, Number(0, 0.99), "Dropout probability of the outputs of attention and MLPs"
    )
    seed: int = _training(
        0, Integer(0), "Seed for initial weights, the choice of training sequences, and dropout"
    )
    eval_steps: int = _evaluation(
        500, Integer(1), "Number of training steps between two evaluations on the evaluation corpus"
    )
    early_stopping_patience: int | None = _evaluation(
        None,
        Integer(1, is_optional=True),
        "Stop after N evaluations in a row without a new lowest loss",
        default_text="no early stopping",
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.n_embd % self.n_head:
            raise InvalidArgumentError(
                "{n_embd} is {n_embd.value}; it must be a multiple of {n_head}, {n_head.value}",
                n_embd=self.n_embd,
                n_head=self.n_head,
            )


TrainerOptions.__doc__ = f"{TrainerOptions.__doc__}\n{attributes_text(TrainerOptions)}"
