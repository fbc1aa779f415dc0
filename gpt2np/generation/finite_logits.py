"""The model's logits for new ids, or what spoils them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpt2np.errors import CheckpointError
from gpt2np.model import GPT2, KVCache


def finite_logits(
    model: GPT2,
    new: Sequence[Sequence[int]],
    caches: Sequence[KVCache],
    logits_indices: ArrayLike | None = None,
) -> NDArray[Any]:
    """The logits (R, V) of some rows of the packed new ids, by default of all.

    Raises:
        CheckpointError: they are infinite or not numbers.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # it is told below, by name
        logits = model.forward(new, caches, logits_indices=logits_indices)
    if not np.isfinite(logits.max(-1)).all():
        raise CheckpointError(f"the model's logits are not numbers: {_cause(model)}")
    return logits


def _cause(model: GPT2) -> str:
    spoiled = [name for name, array in model.weights.items() if not np.isfinite(array).all()]
    if spoiled:
        return f"NaN or infinite numbers are stored in {', '.join(spoiled[:3])}" + (
            f" and {len(spoiled) - 3} more tensors" if len(spoiled) > 3 else ""
        )
    return "they grow beyond its dtype; its weights or config are damaged"
