"""Receipts: what a text was generated from, with a digest of each step's logits.

A receipt of an exact model can be replayed on any machine: all digests must be the same. With a
fast model, only a machine with the same processor and versions must give the same digests.
"""

from __future__ import annotations

import hashlib
import platform
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from gpt2np import __version__
from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.options import GenerationOptions
from gpt2np.model import GPT2
from gpt2np.tokenizer import Tokenizer


def receipt(
    prompt_ids: list[int],
    ids: list[int],
    options: GenerationOptions,
    model: GPT2,
    tokenizer: Tokenizer,
    *,
    is_cut_off: bool,
) -> dict[str, Any]:
    """Return the receipt of the text `ids`, without the model's name; see `Completion.receipt`.

    Raises:
        InvalidArgumentError: the text was generated with `window` or `boundary="text"`, or by a
            beam search that was cut off.
    """
    if options.window or options.boundary == "text":
        raise InvalidArgumentError(
            "a receipt is of a whole text that continues the prompt's tokens; omit window and "
            "boundary"
        )
    if is_cut_off and options.num_beams > 1:
        message = "a beam search that was cut off has no receipt; increase {max_time}, or let "
        message += "the search end"
        raise InvalidArgumentError(message, max_time=options.max_time)
    if options.num_beams == 1:
        options = replace(options, num_return_sequences=1, best_of=None)
    steps = np.arange(len(prompt_ids) - 1, len(prompt_ids) + len(ids) - 1)
    logits = model.forward([[*prompt_ids, *ids]], logits_indices=steps)
    return {
        "gpt2np": __version__,
        "numpy": np.__version__,
        "processor": platform.machine(),
        "exact": model.exact,
        "dtype": str(model.dtype),
        "weights_and_config": _digest_of(model),
        "tokenizer": tokenizer.fingerprint,
        "options": asdict(options),
        "prompt_ids": prompt_ids,
        "ids": ids,
        "is_cut_off": is_cut_off,
        "logits": [hashlib.sha256(row.tobytes()).hexdigest() for row in logits],
    }


def _digest_of(model: GPT2) -> str:
    digest = hashlib.sha256(str(model.config).encode())
    for name, array in sorted(model.weights.items()):
        digest.update(f"{name} {array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
