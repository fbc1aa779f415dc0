"""Hyperparameters, with the names of `transformers`' GPT2Config and TrainingArguments."""

from __future__ import annotations

from dataclasses import dataclass

from gpt2np.errors import InvalidArgumentError
from gpt2np.options import Flag, Integer, Number, attributes_text, check_options, option


@dataclass(frozen=True)
class TrainerOptions:
    """Hyperparameters of a model and of its training.

    The learning rate rises linearly for `warmup_steps` steps, stays at `learning_rate`, and falls
    linearly to zero in the last 60 % of the steps.

    Raises:
        InvalidArgumentError: a value is out of its range, or the width is no multiple of `n_head`.
    """

    n_layer: int = option(6, Integer(1), "Number of blocks", group="Architecture")
    n_head: int = option(4, Integer(1), "Number of attention heads per block", group="Architecture")
    n_embd: int = option(
        256,
        Integer(1),
        "Width of the residual stream, a multiple of {n_head}",
        group="Architecture",
    )
    n_positions: int = option(
        512,
        Integer(1),
        "Context length in tokens, also the length of the training sequences",
        group="Architecture",
    )
    max_steps: int = option(10_000, Integer(1), "Number of training steps", group="Training")
    per_device_train_batch_size: int = option(8, Integer(1), "Sequences per step", group="Training")
    learning_rate: float = option(
        3e-3,
        Number(0),
        "Peak learning rate; it falls to 0 in the last 60% of the steps",
        group="Training",
    )
    warmup_steps: int = option(
        100, Integer(0), "Steps until the peak learning rate", group="Training"
    )
    weight_decay: float = option(
        0.1, Number(0), "Weight decay of the matrices inside the blocks", group="Training"
    )
    max_grad_norm: float = option(
        1.0,
        Number(0),
        "Scale down gradients to this norm if their norm is larger",
        group="Training",
    )
    seed: int = option(
        0, Integer(0), "Seed of the initial weights and of the sequences drawn", group="Training"
    )
    bf16: bool = option(
        False,
        Flag(),
        "Compute in bfloat16; faster where the processor supports it",
        details="The weights stay float32.",
        group="Performance",
    )
    torch_compile: bool = option(
        False, Flag(), "Compile the training step; needs a C++ compiler", group="Performance"
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
