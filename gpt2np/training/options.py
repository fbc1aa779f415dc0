"""Hyperparameters, with the names of `transformers`' GPT2Config and TrainingArguments."""

from __future__ import annotations

from dataclasses import dataclass

from gpt2np.errors import InvalidArgumentError
from gpt2np.options import Integer, Number, attributes_text, check_options, option

_MAX_BLOCKS = 1000  # listing the weights of more would take long, before memory runs out
_MAX_SIZE = 1_000_000  # NumPy can count the numbers of arrays of these sizes, below 2⁶³


@dataclass(frozen=True)
class TrainerOptions:
    """Hyperparameters of a model and of its training.

    The learning rate rises linearly for `warmup_steps` steps to `learning_rate`, and then falls to
    zero along a cosine.

    Raises:
        InvalidArgumentError: a value is out of its range, or the width is no multiple of `n_head`.
    """

    n_layer: int = option(6, Integer(1, _MAX_BLOCKS), "Number of blocks", group="Architecture")
    n_head: int = option(4, Integer(1), "Number of attention heads per block", group="Architecture")
    n_embd: int = option(
        256,
        Integer(1, _MAX_SIZE),
        "Width of the residual stream, a multiple of {n_head}",
        group="Architecture",
    )
    n_positions: int = option(
        512, Integer(1, _MAX_SIZE), "Context length in tokens", group="Architecture"
    )
    max_steps: int = option(10_000, Integer(1), "Number of training steps", group="Training")
    block_size: int | None = option(
        None,
        Integer(1, is_optional=True),
        "Tokens per training sequence (default: the context length)",
        group="Training",
    )
    per_device_train_batch_size: int = option(
        8, Integer(1, _MAX_SIZE), "Sequences per pass", group="Training"
    )
    gradient_accumulation_steps: int = option(
        1,
        Integer(1, _MAX_SIZE),
        "Forward and backward passes per step; their gradients are added",
        group="Training",
    )
    learning_rate: float = option(1e-3, Number(0), "Peak learning rate of AdamW", group="Training")
    warmup_steps: int = option(
        100, Integer(0), "Steps until the peak learning rate", group="Training"
    )
    weight_decay: float = option(
        0.1, Number(0), "Decoupled weight decay of matrices and embeddings", group="Training"
    )
    adam_beta1: float = option(
        0.9, Number(0, 1), "Decay of AdamW's mean of gradients", group="Training"
    )
    adam_beta2: float = option(
        0.95, Number(0, 1), "Decay of AdamW's mean of squared gradients", group="Training"
    )
    adam_epsilon: float = option(
        1e-8, Number(0, is_open=True), "Constant added to AdamW's denominator", group="Training"
    )
    max_grad_norm: float = option(
        1.0,
        Number(0, is_open=True),
        "Scale down gradients to this norm if their norm is larger",
        group="Training",
    )
    embd_pdrop: float = option(0.0, Number(0, 0.99), "Dropout of embeddings", group="Training")
    attn_pdrop: float = option(
        0.0, Number(0, 0.99), "Dropout of attention patterns", group="Training"
    )
    resid_pdrop: float = option(
        0.0, Number(0, 0.99), "Dropout of the outputs of attention and MLPs", group="Training"
    )
    seed: int = option(
        0,
        Integer(0),
        "Seed of initial weights, drawn sequences and dropout",
        group="Training",
    )
    eval_steps: int = option(
        500, Integer(1), "Evaluate every N steps, if there is an evaluation corpus",
        group="Evaluation",
    )  # fmt: skip
    early_stopping_patience: int | None = option(
        None,
        Integer(1, is_optional=True),
        "Stop after N evaluations without a lower loss",
        group="Evaluation",
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
