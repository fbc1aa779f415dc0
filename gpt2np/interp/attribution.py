"""Direct logit attribution: split a logit into the contributions of heads, MLPs and biases.

The last residual is the sum of the embedding and of every block's outputs. The final layer norm
centers this sum, divides it by its standard deviation and multiplies it by ln_f.weight. With the
standard deviation fixed at its value in the pass, these steps and the unembedding are linear. So a
logit is a sum with one term per component. Sources: Elhage et al. 2021, "A Mathematical Framework
for Transformer Circuits"; nostalgebraist 2020.

Shape letters: P components, K attributed tokens, C channels, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt2np.checkpoint.config import LM_HEAD, WTE
from gpt2np.errors import InvalidArgumentError
from gpt2np.interp.lens import logit_lens
from gpt2np.interp.trace import Trace, as_gpt2, check_trace
from gpt2np.kernels.array import Array, IntArray, equal_fields
from gpt2np.language_model import LanguageModel
from gpt2np.model import GPT2


@dataclass(frozen=True)
class Attribution:
    """The contributions of the model's components to the logits of K tokens at one position.

    Attributes:
        position: index of the token at which the logits were computed, from 0.
        tokens: ids of the tokens whose logits are split, (K).
        components: P names: wte, wpe, blocks.i.attn.head.h, blocks.i.attn.c_proj.bias,
            blocks.i.mlp, blocks.i.mlp.c_proj.bias, ln_f.bias.
        values: the contribution of each component to each logit, (P, K); their sum is the logit
            unless hooks edited the pass.
        logits: the logits of the pass, (K).
    """

    position: int
    tokens: IntArray
    components: tuple[str, ...]
    values: NDArray[np.float64]
    logits: NDArray[np.float64]

    __eq__ = equal_fields


def attribution(
    model: GPT2 | LanguageModel, trace: Trace, tokens: int | Sequence[int], position: int = -1
) -> Attribution:
    """Split the logits of `tokens` at a position into contributions of the model's components.

    A negative position counts from the end. To split a logit difference, subtract the two tokens'
    columns of `values`. The trace needs the hook points embed, blocks.*.attn.z, blocks.*.mlp.out,
    and resid of the last block. If the trace lacks logits, they are computed from the last resid.

    Raises:
        InvalidArgumentError: the trace lacks a hook point, or tokens or position are invalid.
    """
    model = as_gpt2(model)
    check_trace(trace)
    ids = np.atleast_1d(np.asarray(tokens))
    is_list = ids.ndim == 1 and ids.size and ids.dtype.kind in "iu"
    if not is_list or ids.min() < 0 or ids.max() >= model.config.vocab_size:
        raise InvalidArgumentError(
            f"tokens must be ids below {model.config.vocab_size}: one, or a list of at least one"
        )
    if not -len(trace.ids) <= position < len(trace.ids):
        raise InvalidArgumentError(f"position is {position}; there are {len(trace.ids)} tokens")
    position %= len(trace.ids)
    last = f"blocks.{model.config.n_layer - 1}.resid"
    trace.require(["embed", "blocks.*.attn.z", "blocks.*.mlp.out", last])
    residual = trace[last][position]
    logits = trace["logits"][position] if "logits" in trace else logit_lens(model, residual)
    vectors = dict(_component_vectors(model, trace, position))
    head = LM_HEAD if LM_HEAD in model.weights else WTE
    columns = model.weights.gather_rows(head, ids).T.astype(np.float64)  # (C, K)
    normalized = _apply_ln_f(model, np.stack(list(vectors.values())), residual)
    bias = model.weights["ln_f.bias"].astype(np.float64) @ columns
    return Attribution(
        position,
        ids.astype(np.int64),
        (*vectors, "ln_f.bias"),
        np.concatenate([normalized @ columns, bias[None]]),
        logits[ids].astype(np.float64),
    )


def _component_vectors(model: GPT2, trace: Trace, position: int) -> Iterator[tuple[str, Array]]:
    """Yield the name and vector (C,) of each component; the vectors sum to the last residual."""
    weights = model.weights
    wpe = weights["wpe.weight"][position].astype(np.float64)
    yield "wte", trace["embed"][position] - wpe
    yield "wpe", wpe
    for i in range(model.config.n_layer):
        z = trace[f"blocks.{i}.attn.z"][:, position].astype(np.float64)  # (H, D)
        rows = weights[f"h.{i}.attn.c_proj.weight"].reshape(*z.shape, -1)  # (H, D, C)
        for head, vector in enumerate(np.einsum("hd,hdc->hc", z, rows)):
            yield f"blocks.{i}.attn.head.{head}", vector
        yield f"blocks.{i}.attn.c_proj.bias", weights[f"h.{i}.attn.c_proj.bias"]
        bias = weights[f"h.{i}.mlp.c_proj.bias"].astype(np.float64)
        yield f"blocks.{i}.mlp", trace[f"blocks.{i}.mlp.out"][position] - bias
        yield f"blocks.{i}.mlp.c_proj.bias", bias


def _apply_ln_f(model: GPT2, vectors: Array, residual: Array) -> Array:
    """Apply ln_f without bias to `vectors` (…, C), with the standard deviation of `residual`."""
    deviation = np.sqrt(residual.astype(np.float64).var() + model.config.layer_norm_epsilon)
    centered = vectors - vectors.mean(-1, keepdims=True)
    result: Array = centered / deviation * model.weights["ln_f.weight"]
    return result
