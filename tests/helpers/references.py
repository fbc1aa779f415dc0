"""Random checkpoints written by `transformers`, and its logits."""

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
    """Write a random GPT-2 with save_pretrained, and return the model of transformers.

    All parameters are random, including biases and layer norms: a 0 or 1 could hide an error.

    Args:
        folder: where to write the checkpoint.
        spread: standard deviation of the noise added to every parameter.
        seed: seed of the random numbers.
        dtype: stored dtype.
        shards: approximate number of shards.
        base: write a GPT2Model, whose names have no prefix, instead of a GPT2LMHeadModel.
        same_head: set an untied head equal to the embedding.
        shape: options of transformers' GPT2Config.
    """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = {"bos_token_id": 0, "eos_token_id": 0} | shape
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(GPT2Config(**shape, attn_implementation="eager")).eval()
    model.to(getattr(torch, dtype))  # before adding noise, so that float64 uses all digits
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += spread * torch.randn_like(parameter)
        if same_head:
            model.lm_head.weight.copy_(model.transformer.wte.weight)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    stored = model.transformer if base else model
    stored.save_pretrained(folder, max_shard_size=size // shards + 1)
    return model


def change_tensors(folder: Path, change):
    """Change the tensors of a checkpoint in place."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def load_reference(folder: Path, dtype: str = "float32"):
    """Load a checkpoint with transformers, with eager attention."""
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return model.eval()


def to_float64(model):
    """Convert a model in place to float64, the reference for float32 results."""
    for block in model.transformer.h:
        block.attn.reorder_and_upcast_attn = False  # upcasts to float32 only
    return model.double()


def reference_logits(model, ids) -> np.ndarray:
    """Return the logits (T, V) of transformers for one sequence."""
    import torch

    with torch.no_grad():
        return model(torch.tensor(np.asarray(ids))[None]).logits[0].numpy()
