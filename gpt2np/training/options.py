"""Hyperparameters, with the names of `transformers`' GPT2Config and TrainingArguments."""

from __future__ import annotations

from dataclasses import dataclass, fields

from gpt2np.errors import InvalidArgumentError, check_argument, is_integer


@dataclass(frozen=True)
class TrainerOptions:
    """Hyperparameters of a model and of its training.

    The learning rate rises linearly for `warmup_steps` steps, stays at `learning_rate`, and falls
    linearly to zero in the last 60 % of the steps.

    Attributes:
        n_layer: number of blocks.
        n_head: number of attention heads per block.
        n_embd: width of the residual stream.
        n_positions: context length; also the length of the training sequences.
        max_steps: number of training steps.
        per_device_train_batch_size: sequences per step.
        learning_rate: peak learning rate.
        warmup_steps: number of steps until the peak.
        weight_decay: weight decay of the matrices inside the blocks.
        max_grad_norm: gradients with a larger norm are scaled down to this norm.
        seed: seed of the initial weights and of the sequences drawn.
        bf16: compute in bfloat16, by autocast; the weights stay float32.
        torch_compile: compile the forward and backward pass.

    Raises:
        InvalidArgumentError: a value is out of its range.
    """

    n_layer: int = 6
    n_head: int = 4
    n_embd: int = 256
    n_positions: int = 512
    max_steps: int = 10_000
    per_device_train_batch_size: int = 8
    learning_rate: float = 3e-3
    warmup_steps: int = 100
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0
    seed: int = 0
    bf16: bool = False
    torch_compile: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value, lowest = getattr(self, field.name), int(field.name not in _FROM_ZERO)
            if type(field.default) is int:
                is_valid, expected = is_integer(value), f"an integer, at least {lowest}"
                check_argument(is_valid and value >= lowest, field.name, value, expected)
            elif type(field.default) is float:
                is_valid = isinstance(value, (int, float)) and 0 <= value < float("inf")
                check_argument(is_valid, field.name, value, "a number, at least 0")
        if self.n_embd % self.n_head:
            raise InvalidArgumentError(
                "{n_embd} is {n_embd.value}; it must be a multiple of {n_head}, {n_head.value}",
                n_embd=self.n_embd,
                n_head=self.n_head,
            )


_FROM_ZERO = ("warmup_steps", "seed")
