"""The arrays of a pass beside those of `transformers`, where that is installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.checkpoint.names import LM_HEAD
from gpt2np.errors import GPT2NPError
from gpt2np.interp.trace import trace
from gpt2np.model import GPT2

Array = NDArray[Any]


@dataclass(frozen=True)
class Difference:
    """How far apart two arrays are.

    Attributes:
        point: their name.
        largest: the largest |difference|.
        mean: the mean |difference|.
        size: the largest |number|, to judge the others by.
    """

    point: str
    largest: float
    mean: float
    size: float


def differences(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> list[Difference]:
    """Of every array that both have, in our order."""
    found = []
    for name, array in ours.items():
        if name in theirs:
            apart = np.abs(array.astype(np.float64) - theirs[name])
            size = float(np.abs(theirs[name]).max())
            found.append(Difference(name, float(apart.max()), float(apart.mean()), size))
    return found


def worst_of_layers(differences: Sequence[Difference]) -> list[Difference]:
    """The largest difference in each layer: the embedding, every block, ln_f, and the logits."""
    layers: dict[str, list[Difference]] = {}
    for difference in differences:
        name = difference.point
        layer = ".".join(name.split(".")[:2]) if name.startswith("blocks.") else name
        layers.setdefault(layer, []).append(difference)
    return [max(layer, key=lambda d: d.largest) for layer in layers.values()]


def compare_with_transformers(model: GPT2, ids: Sequence[int]) -> list[Difference]:
    """Every point of a pass over `ids` beside that of transformers' GPT-2 with the same weights.

    Raises:
        GPT2NPError: transformers or torch is not installed.
    """
    ours = trace(model, ids)  # first, as it says what is wrong with ids
    return differences(ours, transformers_arrays(transformers_model(model), ids))


def transformers_model(model: GPT2) -> Any:
    """A GPT2LMHeadModel with eager attention and a copy of the weights, in the same dtype.

    Raises:
        GPT2NPError: transformers or torch is not installed.
    """
    try:
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        raise GPT2NPError(
            f"{error.name} is not installed; to compare: pip install torch transformers"
        ) from error
    settings = asdict(model.config)
    del settings["eos_token_ids"]  # of which the forward pass knows nothing
    settings |= {
        "tie_word_embeddings": LM_HEAD not in model.weights,
        "bos_token_id": None,
        "eos_token_id": None,
        "attn_implementation": "eager",
    }
    other: Any = GPT2LMHeadModel(GPT2Config(**settings))
    other.eval().to(getattr(torch, model.dtype.name))
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            parameter.copy_(torch.tensor(model.weights[name.removeprefix("transformer.")]))
    return other


def transformers_arrays(other: Any, ids: Sequence[int]) -> dict[str, Array]:
    """The points of a pass of a GPT2LMHeadModel with eager attention, under our names.

    They come from `output_hidden_states`, `output_attentions` and forward hooks.
    """
    import torch

    with torch.no_grad(), _watched(other) as seen:
        result = other(torch.tensor([list(ids)]), output_hidden_states=True, output_attentions=True)
    heads = other.config.n_head
    arrays = {name: tensor[0].numpy() for name, tensor in seen.items()}
    # Of the hidden states, the last is what comes out of ln_f instead of the last block.
    hidden = [state[0].numpy() for state in result.hidden_states]
    arrays |= {"embed": hidden[0], "ln_f": hidden[-1], "logits": result.logits[0].numpy()}
    for i, pattern in enumerate(result.attentions):
        at = f"blocks.{i}"
        arrays[f"{at}.attn.pattern"] = pattern[0].numpy()
        arrays |= {f"{at}.resid": hidden[i + 1]} if i + 2 < len(hidden) else {}
        qkv = np.split(arrays.pop(f"{at}.attn.qkv"), 3, axis=-1)
        for letter, array in zip("qkvz", [*qkv, arrays[f"{at}.attn.z"]], strict=True):
            by_head = array.reshape(len(array), heads, -1).swapaxes(0, 1)  # (H, T, D)
            arrays[f"{at}.attn.{letter}"] = by_head
    return arrays


@contextmanager
def _watched(other: Any) -> Iterator[dict[str, Any]]:
    """What goes in and out of the modules of transformers' GPT-2 while it runs, by our names."""
    seen: dict[str, Any] = {}
    hooks = []

    def keep(module: str, goes_in: str = "", comes_out: str = "") -> None:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            seen.update({goes_in: inputs[0]} if goes_in else {})
            seen.update({comes_out: output} if comes_out else {})

        hooks.append(other.transformer.get_submodule(module).register_forward_hook(hook))

    n_layer = len(other.transformer.h)
    for i in range(n_layer):
        h, at = f"h.{i}", f"blocks.{i}"
        keep(f"{h}.ln_1", comes_out=f"{at}.ln_1")
        keep(f"{h}.attn.c_attn", comes_out=f"{at}.attn.qkv")
        keep(f"{h}.attn.c_proj", f"{at}.attn.z", f"{at}.attn.out")
        keep(f"{h}.ln_2", f"{at}.resid_mid", f"{at}.ln_2")
        keep(f"{h}.mlp.act", f"{at}.mlp.pre", f"{at}.mlp.act")
        keep(f"{h}.mlp.c_proj", comes_out=f"{at}.mlp.out")
    keep("ln_f", goes_in=f"blocks.{n_layer - 1}.resid")
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
