"""Random checkpoints that `transformers` writes, and its logits."""

from pathlib import Path

import numpy as np


def save_reference(
    folder: Path,
    *,
    spread: float = 0.05,
    seed: int = 0,
    dtype: str = "float32",
    shards: int = 1,
    base: bool = False,
    same_head: bool = False,
    **shape,
):
    """A random transformers GPT-2 in `folder`, written by save_pretrained; returns the model.

    Every parameter is drawn anew, biases and layer norms too, so that none hides behind a 0 or a 1.
    It is stored in `dtype`, in about so many `shards`, and as a GPT2LMHeadModel or, `base`, as a
    GPT2Model, whose names have no prefix. `same_head` makes an untied head equal to the embedding.
    """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = {"bos_token_id": 0, "eos_token_id": 0} | shape
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(GPT2Config(**shape, attn_implementation="eager")).eval()
    model.to(getattr(torch, dtype))  # before the drawing, so that float64 has all its digits
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += spread * torch.randn_like(parameter)
        if same_head:
            model.lm_head.weight.copy_(model.transformer.wte.weight)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    stored = model.transformer if base else model
    stored.save_pretrained(folder, max_shard_size=size // shards + 1)
    return model


def load_reference(folder: Path, dtype: str = "float32"):
    """transformers' GPT-2 of the checkpoint in `folder`, with eager attention."""
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return model.eval()


def to_float64(model):
    """The model itself, from now on in float64: what float32 results are measured against."""
    for block in model.transformer.h:
        block.attn.reorder_and_upcast_attn = False  # it goes through float32
    return model.double()


def reference_logits(model, ids) -> np.ndarray:
    """transformers' logits (T, V) for one sequence."""
    import torch

    with torch.no_grad():
        return model(torch.tensor(np.asarray(ids))[None]).logits[0].numpy()
