"""Direct logit attribution: how much each head, MLP and bias adds to a token's logit.

The last residual is a sum of what the embedding and every block have put in. The last layer norm
centres it, divides it by its standard deviation, and multiplies it by ln_f.weight; with that
deviation held at what it was in the pass, all of this and the unembedding are linear, so that the
logit is a sum of one number for each part (Elhage et al. 2021, "A Mathematical Framework for
Transformer Circuits"; nostalgebraist 2020 for the view itself).

Shape letters: P parts, K tokens asked about, C channels, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.checkpoint.names import LM_HEAD, WTE
from gpt2np.errors import InvalidArgumentError
from gpt2np.interp.trace import Trace
from gpt2np.model import GPT2

Array = NDArray[Any]


@dataclass(frozen=True)
class Attribution:
    """The logits of some tokens at one position, as sums.

    Attributes:
        position: the token after which the logits are, from 0.
        tokens: (K), the ids.
        parts: P names: wte, wpe, blocks.i.attn.head.h, blocks.i.attn.c_proj.bias, blocks.i.mlp,
            blocks.i.mlp.c_proj.bias, ln_f.bias; or those of `by_block`.
        values: (P, K), what each part adds.
        logits: (K), of the pass itself.
    """

    position: int
    tokens: NDArray[np.int64]
    parts: tuple[str, ...]
    values: NDArray[np.float64]
    logits: NDArray[np.float64]

    @property
    def rest(self) -> NDArray[np.float64]:
        """What the parts don't explain, (K): rounding, unless an intervention changed the sum."""
        left: NDArray[np.float64] = self.logits - self.values.sum(0)
        return left

    def by_block(self) -> Attribution:
        """The same with fewer parts: embed, blocks.i.attn and blocks.i.mlp, each with its bias."""
        groups: dict[str, list[int]] = {}
        for number, part in enumerate(self.parts):
            groups.setdefault(_group(part), []).append(number)
        values = np.stack([self.values[numbers].sum(0) for numbers in groups.values()])
        return Attribution(self.position, self.tokens, tuple(groups), values, self.logits)


def attribution(
    model: GPT2, trace: Trace, tokens: int | Sequence[int], position: int = -1
) -> Attribution:
    """What each part of the model adds to the logits of `tokens` after the token at `position`.

    The difference of two tokens' columns is the attribution of their logits' difference.

    Args:
        model: the one that was traced.
        trace: with embed, blocks.*.attn.z, blocks.*.mlp.out, the last block's resid, and logits.
        tokens: ids that the logits are of, K.
        position: from the end if negative.

    Raises:
        InvalidArgumentError: the trace doesn't hold these points; impossible tokens or position.
    """
    asked = np.atleast_1d(np.asarray(tokens))
    is_list = asked.ndim == 1 and asked.size and asked.dtype.kind in "iu"
    if not is_list or asked.min() < 0 or asked.max() >= model.config.vocab_size:
        raise InvalidArgumentError(
            f"tokens must be ids below {model.config.vocab_size}: one, or a list of at least one"
        )
    if not -len(trace.ids) <= position < len(trace.ids):
        raise InvalidArgumentError(f"position is {position}; there are {len(trace.ids)} tokens")
    position %= len(trace.ids)
    last = f"blocks.{model.config.n_layer - 1}.resid"
    trace.held(["embed", "blocks.*.attn.z", "blocks.*.mlp.out", last, "logits"])
    named = dict(_parts(model, trace, position))
    head = LM_HEAD if LM_HEAD in model.weights else WTE
    columns = model.weights.rows(head, asked).T.astype(np.float64)  # (C, K)
    values = _normalized(model, np.stack(list(named.values())), trace[last][position]) @ columns
    bias = model.weights["ln_f.bias"].astype(np.float64) @ columns
    return Attribution(
        position,
        asked.astype(np.int64),
        (*named, "ln_f.bias"),
        np.concatenate([values, bias[None]]),
        trace["logits"][position, asked].astype(np.float64),
    )


def _parts(model: GPT2, trace: Trace, position: int) -> Iterator[tuple[str, Array]]:
    """Names, and vectors (C,) in float64 whose sum is the last residual."""
    weights = model.weights
    at_place = weights["wpe.weight"][position].astype(np.float64)
    yield "wte", trace["embed"][position] - at_place
    yield "wpe", at_place
    for i in range(model.config.n_layer):
        z = trace[f"blocks.{i}.attn.z"][:, position].astype(np.float64)  # (H, D)
        rows = weights[f"h.{i}.attn.c_proj.weight"].reshape(*z.shape, -1)  # (H, D, C)
        for head, vector in enumerate(np.einsum("hd,hdc->hc", z, rows)):
            yield f"blocks.{i}.attn.head.{head}", vector
        yield f"blocks.{i}.attn.c_proj.bias", weights[f"h.{i}.attn.c_proj.bias"]
        bias = weights[f"h.{i}.mlp.c_proj.bias"].astype(np.float64)
        yield f"blocks.{i}.mlp", trace[f"blocks.{i}.mlp.out"][position] - bias
        yield f"blocks.{i}.mlp.c_proj.bias", bias


def _normalized(model: GPT2, parts: Array, residual: Array) -> Array:
    """Parts (P, C) as the last layer norm passes them on, with the deviation of `residual` (C)."""
    deviation = np.sqrt(residual.astype(np.float64).var() + model.config.layer_norm_epsilon)
    centred = parts - parts.mean(-1, keepdims=True)
    result: Array = centred / deviation * model.weights["ln_f.weight"]
    return result


def _group(part: str) -> str:
    if part in ("wte", "wpe"):
        return "embed"
    return ".".join(part.split(".")[:3]) if part.startswith("blocks.") else part
