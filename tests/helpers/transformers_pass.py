"""The forward pass of `transformers`, array by array, under the names of gpt2np's hook points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np

from gpt2np.checkpoint.config import LM_HEAD
from gpt2np.kernels.array import Array
from gpt2np.model import GPT2


def transformers_model(model: GPT2) -> Any:
    """Build a GPT2LMHeadModel with eager attention and the weights, config and dtype of `model`."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    settings = asdict(model.config)
    del settings["eos_token_ids"]  # not used in the forward pass
    settings |= {
        "tie_word_embeddings": LM_HEAD not in model.weights,
        "bos_token_id": None,
        "eos_token_id": None,
        "attn_implementation": "eager",
    }
    reference: Any = GPT2LMHeadModel(GPT2Config(**settings))
    reference.eval().to(getattr(torch, model.dtype.name))
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            parameter.copy_(torch.tensor(model.weights[name.removeprefix("transformer.")]))
    return reference


def transformers_arrays(reference: Any, ids: Sequence[int]) -> dict[str, Array]:
    """Run a GPT2LMHeadModel with eager attention; returns the activations by gpt2np's names."""
    import torch

    with torch.no_grad(), _captured_modules(reference) as captured:
        result = reference(
            torch.tensor([list(ids)]), output_hidden_states=True, output_attentions=True
        )
    heads = reference.config.n_head
    arrays = {name: tensor[0].numpy() for name, tensor in captured.items()}
    # The last hidden state is the output of ln_f, not of the last block.
    hidden = [state[0].numpy() for state in result.hidden_states]
    arrays |= {"embed": hidden[0], "ln_f": hidden[-1], "logits": result.logits[0].numpy()}
    for i, pattern in enumerate(result.attentions):
        block = f"blocks.{i}"
        arrays[f"{block}.attn.pattern"] = pattern[0].numpy()
        arrays |= {f"{block}.resid": hidden[i + 1]} if i + 2 < len(hidden) else {}
        qkv = np.split(arrays.pop(f"{block}.attn.qkv"), 3, axis=-1)
        for letter, array in zip("qkvz", [*qkv, arrays[f"{block}.attn.z"]], strict=True):
            by_head = array.reshape(len(array), heads, -1).swapaxes(0, 1)  # (H, T, D)
            arrays[f"{block}.attn.{letter}"] = by_head
    return arrays


@contextmanager
def _captured_modules(reference: Any) -> Iterator[dict[str, Any]]:
    """Yield a dict that each pass of `reference` fills with tensors, under gpt2np's names."""
    captured: dict[str, Any] = {}
    hooks = []

    def capture(module: str, input_name: str = "", output_name: str = "") -> None:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            captured.update({input_name: inputs[0]} if input_name else {})
            captured.update({output_name: output} if output_name else {})

        hooks.append(reference.transformer.get_submodule(module).register_forward_hook(hook))

    n_layer = len(reference.transformer.h)
    for i in range(n_layer):
        h, block = f"h.{i}", f"blocks.{i}"
        capture(f"{h}.ln_1", output_name=f"{block}.ln_1")
        capture(f"{h}.attn.c_attn", output_name=f"{block}.attn.qkv")
        capture(f"{h}.attn.c_proj", f"{block}.attn.z", f"{block}.attn.out")
        capture(f"{h}.ln_2", f"{block}.resid_mid", f"{block}.ln_2")
        capture(f"{h}.mlp.act", f"{block}.mlp.pre", f"{block}.mlp.act")
        capture(f"{h}.mlp.c_proj", output_name=f"{block}.mlp.out")
    capture("ln_f", input_name=f"blocks.{n_layer - 1}.resid")
    try:
        yield captured
    finally:
        for hook in hooks:
            hook.remove()
