"""Known mistakes of GPT-2 engines, each as a change of the ordinary pass of `gpt2np.model.gpt2`.

Shape letters: T tokens, C channels, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.kernels.array import Array, BoolArray
from gpt2np.model.gpt2 import gpt2
from gpt2np.model.ops import causal_mask, causal_softmax, gelu, gelu_new, silu
from gpt2np.model.plain import PlainContext, PlainLinear, arrange_arrays
from gpt2np.runtime.context import Hook

Part = Callable[[Any, GPT2Config], Any]
"""Returns the wrong version of a part of the weights, such as a matrix, layer norm or scale."""
WrongHook = Callable[[Array, Mapping[str, Array], Any], Array]
"""Returns the wrong array. Its arguments: the right array, the latest array of each hook point, and
the block's weights."""


@dataclass(frozen=True)
class Mistake:
    """A well-known mistake of GPT-2 engines.

    Attributes:
        name: what the engine does wrong.
        parts: functions that change fields of `ModelWeights` and `BlockWeights`, by field.
        hooks: functions that change an array, by the hook point in its block.
    """

    name: str
    parts: Mapping[str, Part] = field(default_factory=dict)
    hooks: Mapping[str, WrongHook] = field(default_factory=dict)

    def changed(self, part: Any, config: GPT2Config) -> Any:
        """Return the weights of the model or of a block with the wrong parts."""
        fields = {name: f for name, f in self.parts.items() if hasattr(part, name)}
        return replace(part, **{name: f(getattr(part, name), config) for name, f in fields.items()})


def run_with_mistakes(
    mistakes: Sequence[Mistake],
    ids: Sequence[int],
    config: GPT2Config,
    weights: Mapping[str, Array],
    hook: Hook,
) -> None:
    """Run the pass of an engine with mistakes; `hook` gets the engine's arrays."""
    w = arrange_arrays(config, weights)
    for mistake in mistakes:
        blocks = [mistake.changed(block, config) for block in w.blocks]
        w = replace(mistake.changed(w, config), blocks=blocks)
    arrays: dict[str, Array] = {}

    def wrong_hook(name: str, x: Array) -> Array:
        *inside, point = name.split(".", 2)  # blocks, 3, attn.q
        block = w.blocks[int(inside[1])] if inside else None
        for mistake in mistakes:
            x = mistake.hooks[point](x, arrays, block) if point in mistake.hooks else x
        arrays[point] = hook(name, x)
        return arrays[point]

    gpt2(PlainContext(ids, config, wrong_hook), w)


def _without_bias(layer: Any, config: GPT2Config) -> Any:
    return replace(layer, bias=np.zeros_like(layer.bias))


def _transposed(linear: PlainLinear, config: GPT2Config) -> PlainLinear:
    """Read the memory of the matrix as that of its transpose."""
    return replace(linear, weight=linear.weight.reshape(linear.weight.shape[::-1]).T)


def _columns(reorder: Callable[[Array, int], Array]) -> dict[str, Part]:
    """Return c_attn with other columns; `reorder` gets them as (…, 3, C), and H."""

    def change(linear: Any, config: GPT2Config) -> Any:
        weight, bias = (
            reorder(x.reshape(-1, 3, config.n_embd), config.n_head).reshape(x.shape)
            for x in (linear.weight, linear.bias)
        )
        return replace(linear, weight=weight, bias=bias)

    return {"c_attn": change}


def _norms(change: Part) -> dict[str, Part]:
    return dict.fromkeys(("ln_1", "ln_2", "ln_f"), change)


def _normalized(axis: int = -1, ddof: int = 0, center: bool = True) -> dict[str, Part]:
    """Return layer norms over another axis, with another divisor, or without the mean."""

    def normalize(ln: Any, x: Array) -> Array:
        x = x - x.mean(axis, keepdims=True) if center else x
        variance = (x * x).sum(axis, keepdims=True) / (x.shape[axis] - ddof)
        y: Array = x / np.sqrt(variance + ln.epsilon) * ln.weight + ln.bias
        return y

    return _norms(lambda ln, c: partial(normalize, ln))


def _scale(factor: Callable[[GPT2Config], float]) -> dict[str, Part]:
    return {"attention_scale": lambda scale, c: factor(c) * scale}


def _one_later(x: Array) -> Array:
    """Return the rows one token later: row t is that of token t - 1."""
    return np.concatenate([x[..., :1, :], x[..., :-1, :]], -2)


def _pattern(q: Array, k: Array, w: Any, mask: BoolArray) -> Array:
    """Return the attention pattern for another mask, or for other queries and keys."""
    return causal_softmax(q * w.attention_scale @ k.swapaxes(1, 2), mask)


def _seen_until(n: int) -> WrongHook:
    """Return the pattern of tokens that see keys up to n tokens later; all see the first token."""

    def pattern(x: Array, a: Mapping[str, Array], w: Any) -> Array:
        mask = np.triu(np.ones(x.shape[1:], bool), n + 1)
        mask[:, 0] = False
        return _pattern(a["attn.q"], a["attn.k"], w, mask)

    return pattern


def _lagging_keys(x: Array, a: Mapping[str, Array], w: Any) -> Array:
    return _pattern(a["attn.q"], _one_later(a["attn.k"]), w, causal_mask(*x.shape[1:]))


def _over_queries(x: Array, a: Mapping[str, Array], w: Any) -> Array:
    pattern = _pattern(a["attn.k"], a["attn.q"], w, causal_mask(*x.shape[1:]).T)
    return pattern.swapaxes(1, 2)


def _float16_table(x: Array, a: Mapping[str, Array], w: Any) -> Array:
    """Look up the activation as ggml does: from -10 to 10, in a table for x rounded to float16."""
    pre = a["mlp.pre"]
    table = w.activation(pre.astype(np.float16).astype(x.dtype)).astype(np.float16)
    return np.where(np.abs(pre) < 10, table, np.maximum(pre, 0)).astype(x.dtype)


FLOAT16_TABLE = Mistake("GELU from a table of float16", hooks={"mlp.act": _float16_table})
"""What llama.cpp computes on purpose."""

_PARTS: dict[str, Mapping[str, Part]] = {
    "positions are off by one": {"wpe": lambda wpe, c: np.roll(wpe, -1, 0)},
    "position embeddings are missing": {"wpe": lambda wpe, c: np.zeros_like(wpe)},
    "token ids are off by one": {"wte": lambda wte, c: np.roll(wte, -1, 0)},
    "ln_1 is missing": {"ln_1": lambda ln, c: np.copy},
    "ln_2 is missing": {"ln_2": lambda ln, c: np.copy},
    "ln_f is missing": {"ln_f": lambda ln, c: np.copy},
    "layer norm: epsilon is 1e-3": _norms(lambda ln, c: replace(ln, epsilon=1e-3)),
    "layer norm: the bias is missing": _norms(_without_bias),
    "layer norm: the variance is divided by C - 1": _normalized(ddof=1),
    "layer norm: the mean is not subtracted (RMS norm)": _normalized(center=False),
    "layer norm: over the tokens, not the channels": _normalized(axis=0),
    "c_attn is transposed": {"c_attn": _transposed},
    "attention's c_proj is transposed": {"attn_c_proj": _transposed},
    "the bias of c_attn is missing": {"c_attn": _without_bias},
    "the bias of c_fc is missing": {"c_fc": _without_bias},
    "the bias of the MLP's c_proj is missing": {"mlp_c_proj": _without_bias},
    "c_attn's thirds are read in the order k, q, v": _columns(lambda x, h: x[:, [1, 0, 2]]),
    "c_attn's thirds are read in the order q, v, k": _columns(lambda x, h: x[:, [0, 2, 1]]),
    "heads are interleaved: each head's q, k and v are read side by side": _columns(
        lambda x, h: x.reshape(len(x), h, 3, -1).swapaxes(1, 2)
    ),
    "heads are interleaved: channel c of head h is read at c · H + h": _columns(
        lambda x, h: x.reshape(len(x), 3, -1, h).swapaxes(2, 3)
    ),
    "the scale 1 / √D is missing": _scale(lambda c: (c.n_embd / c.n_head) ** 0.5),
    "the scale is 1 / D": _scale(lambda c: (c.n_embd / c.n_head) ** -0.5),
    "the scale is 1 / √C": _scale(lambda c: c.n_head**-0.5),
}
_HOOKS: dict[str, dict[str, WrongHook]] = {
    "attn.pattern": {
        "the causal mask is missing": _seen_until(10**6),
        "the causal mask is off by one: each token sees the next": _seen_until(1),
        "the causal mask is off by one: no token sees itself": _seen_until(-1),
        "softmax is over the queries": _over_queries,
        "the cache lags: keys are those of the token before": _lagging_keys,
    },
    "attn.z": {
        "the cache lags: values are those of the token before": lambda x, a, w: (
            a["attn.pattern"] @ _one_later(a["attn.v"])
        ),
    },
    "attn.out": {
        "heads are joined without a transposition of tokens and heads": lambda x, a, w: (
            w.attn_c_proj(a["attn.z"].reshape(len(x), -1))
        ),
    },
    "resid_mid": {
        "the residual connection around attention is missing": lambda x, a, w: a["attn.out"],
    },
    "mlp.act": {
        "GELU by erf instead of the config's activation": lambda x, a, w: gelu(a["mlp.pre"]),
        "GELU in the tanh form instead of the config's activation": lambda x, a, w: gelu_new(
            a["mlp.pre"]
        ),
        "GELU as x · sigmoid(1.702 x)": lambda x, a, w: silu(1.702 * a["mlp.pre"]) / 1.702,
    },
    "resid": {
        "post-norm: the MLP is added to ln_2's output": lambda x, a, w: a["ln_2"] + a["mlp.out"],
    },
}

MISTAKES: tuple[Mistake, ...] = (
    *(Mistake(name, parts) for name, parts in _PARTS.items()),
    *(
        Mistake(name, hooks={point: f})
        for point, hooks in _HOOKS.items()
        for name, f in hooks.items()
    ),
)
"""The known mistakes. Each shows wherever a changed part or array is used."""
