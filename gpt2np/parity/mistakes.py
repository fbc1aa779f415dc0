"""Classic mistakes of GPT-2 engines: each a variation of one step of the forward pass.

A mistake computes the array at a hook point from the arrays before it, as an engine with that
mistake does. `check` tries the mistakes of the step at which a candidate first differs.

Shape letters: T tokens, C channels, H heads, D head size, F neurons, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.checkpoint.names import LM_HEAD, WTE
from gpt2np.kernels.array import Array, IntArray
from gpt2np.model.ops import ACTIVATIONS, causal_mask, layer_norm, softmax


@dataclass(frozen=True)
class PassStep:
    """What a step of the pass reads: earlier arrays, weights and settings.

    Attributes:
        right: the array that the step should compute.
        arrays: the arrays of earlier hook points by full name.
        block: the prefix of the block, "blocks.3.", or "" outside of the blocks.
    """

    right: Array
    arrays: Mapping[str, Array]
    weights: Mapping[str, Array]
    config: GPT2Config
    ids: IntArray
    block: str

    @property
    def layer(self) -> int:
        """The index of the block; outside of the blocks, the index of the last block."""
        return int(self.block.split(".")[1]) if self.block else self.config.n_layer - 1

    def __getitem__(self, point: str) -> Array:
        """Return an earlier array of the same block; outside of the blocks, that of the model."""
        return self.arrays[self.block + point]

    def with_arrays(self, changed: Mapping[str, Array]) -> PassStep:
        """Return the step with other arrays of the same block."""
        return replace(
            self,
            arrays={**self.arrays, **{self.block + name: array for name, array in changed.items()}},
        )

    def weight(self, name: str) -> Array:
        """Return a weight of the block, such as attn.c_attn.weight, or of the model."""
        return self.weights[f"h.{self.layer}.{name}" if self.block else name]

    @property
    def resid(self) -> Array:
        """The residual stream before the block, or after the last block."""
        if not self.block:
            return self.arrays[f"blocks.{self.layer}.resid"]
        return self.arrays[f"blocks.{self.layer - 1}.resid" if self.layer else "embed"]

    def linear(self, x: Array, name: str, *, transposed: bool = False, bias: bool = True) -> Array:
        """Return x @ weight + bias; `transposed` reads the weight's memory as [out, in]."""
        weight = self.weight(f"{name}.weight")
        if transposed:
            weight = weight.reshape(weight.shape[::-1]).T
        y: Array = x @ weight
        return y + self.weight(f"{name}.bias") if bias else y

    def norm(self, x: Array, name: str) -> Array:
        """Return the layer norm of x."""
        weight, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return layer_norm(x, weight, bias, self.config.layer_norm_epsilon)


Compute = Callable[[PassStep], Array]


@dataclass(frozen=True)
class Mistake:
    """A well-known mistake of GPT-2 engines.

    Attributes:
        name: what the engine does wrong.
        point: the hook point at which the mistake shows first, without the block.
        compute: the array that an engine with this mistake has at the point.
        by_design: whether some engines, such as llama.cpp, compute the step in this way on purpose.
    """

    name: str
    point: str
    compute: Compute
    by_design: bool = False


def _norm_input(s: PassStep, norm: str) -> Array:
    return s["resid_mid"] if norm == "ln_2" else s.resid


def _centered(x: Array) -> Any:
    return x - x.mean(-1, keepdims=True)


def _variance(x: Array, ddof: int = 0) -> Any:
    return x.var(-1, keepdims=True, ddof=ddof)


def _mean_square(x: Array) -> Any:
    return (x * x).mean(-1, keepdims=True)


def _standardized(x: Array, epsilon: float) -> Any:
    return _centered(x) / np.sqrt(_variance(x) + epsilon)


_NORMALIZATIONS: dict[str, Callable[[Array, float], Array]] = {
    "epsilon is 1e-6": lambda x, _: _standardized(x, 1e-6),
    "epsilon is 1e-12 or missing": lambda x, _: _standardized(x, 1e-12),
    "epsilon is 1e-3": lambda x, _: _standardized(x, 1e-3),
    "epsilon is added outside of the root": lambda x, e: _centered(x) / (np.sqrt(_variance(x)) + e),
    "the variance is divided by C - 1": lambda x, e: _centered(x) / np.sqrt(_variance(x, 1) + e),
    "the mean is not subtracted (RMS norm)": lambda x, e: x / np.sqrt(_mean_square(x) + e),
    "the variance is the mean square, without subtracting the mean": lambda x, e: (
        _centered(x) / np.sqrt(_mean_square(x) + e)
    ),
    "divided by the variance, without the root": lambda x, e: _centered(x) / (_variance(x) + e),
    "over the tokens, not the channels": lambda x, e: (x - x.mean(0)) / np.sqrt(x.var(0) + e),
}


def _norm_mistakes(norm: str) -> list[Mistake]:
    """Return the mistakes of one layer norm."""
    other = "ln_2" if norm == "ln_1" else "ln_1"

    def normalized(
        s: PassStep, normalize: Callable[[Array, float], Array] = _standardized
    ) -> Array:
        return normalize(_norm_input(s, norm), s.config.layer_norm_epsilon)

    def scaled(s: PassStep, normalize: Callable[[Array, float], Array]) -> Array:
        return normalized(s, normalize) * s.weight(f"{norm}.weight") + s.weight(f"{norm}.bias")

    steps: dict[str, Compute] = {
        **{name: partial(scaled, normalize=function) for name, function in _NORMALIZATIONS.items()},
        "the bias is missing": lambda s: s.right - s.weight(f"{norm}.bias"),
        "weight and bias are missing": normalized,
        "the weight is 1 + weight": lambda s: s.right + normalized(s),
    }
    if norm != "ln_f":
        steps["ln_1 and ln_2 are exchanged"] = lambda s: s.norm(_norm_input(s, norm), other)
    return [
        Mistake(f"{norm} is missing", norm, lambda s: _norm_input(s, norm)),
        *(Mistake(f"layer norm: {name}", norm, compute) for name, compute in steps.items()),
    ]


_SUBNORMALS = "subnormal float16 weights (magnitude below 2⁻¹⁴) are read as 0"


def _without_subnormals(s: PassStep) -> PassStep:
    """Return the step with subnormal float16 weights set to 0.

    Changes only weights of the step's block, or outside of all blocks.
    """
    prefixes = (f"h.{s.layer}.",) if s.block else ("wte.", "wpe.", LM_HEAD)
    names = [name for name in s.weights if name.startswith(prefixes)]
    flushed = {name: np.where(np.abs(w := s.weights[name]) < 2.0**-14, 0, w) for name in names}
    return replace(s, weights={**s.weights, **flushed})


def _heads(x: Array, n_head: int) -> Array:
    """Split the channels (T, C) into heads (H, T, D)."""
    return x.reshape(len(x), n_head, -1).swapaxes(0, 1)


def _third(i: int, s: PassStep, *, transposed: bool = False, bias: bool = True) -> Array:
    """Return the queries (i = 0), keys (1) or values (2) of an engine's c_attn."""
    y = s.linear(s["ln_1"], "attn.c_attn", transposed=transposed, bias=bias)
    return _heads(np.split(y, 3, -1)[i], s.config.n_head)


def _third_with_query_bias(i: int, s: PassStep) -> Array:
    bias = np.split(s.weight("attn.c_attn.bias"), 3)[0]
    return _third(i, s, bias=False) + _heads(bias[None], s.config.n_head)


def _side_by_side(i: int, s: PassStep) -> Array:
    y = s.linear(s["ln_1"], "attn.c_attn").reshape(len(s.ids), s.config.n_head, 3, -1)
    return y[:, :, i].swapaxes(0, 1)


def _rotary(i: int, s: PassStep) -> Array:
    half = s.right.shape[-1] // 2
    angle = np.arange(len(s.ids))[:, None] * 10000.0 ** (-np.arange(half) / max(half, 1))
    x, y, rest = np.split(s.right, [half, 2 * half], -1)
    cos, sin = np.cos(angle), np.sin(angle)
    return s.right if i == 2 else np.concatenate([x * cos - y * sin, y * cos + x * sin, rest], 2)


def _reordered(order: str, i: int, s: PassStep) -> Array:
    return _third("qkv".index(order[i]), s)


_QKV: dict[str, Callable[[int, PassStep], Array]] = {
    "c_attn's matrix is transposed ([in, out] read as [out, in])": partial(_third, transposed=True),
    "c_attn's bias is missing": partial(_third, bias=False),
    "keys and values get the query part of c_attn's bias instead of their own": (
        _third_with_query_bias
    ),
    _SUBNORMALS: lambda i, s: _third(i, _without_subnormals(s)),
    "ln_1 is not applied before attention": lambda i, s: _third(
        i, s.with_arrays({"ln_1": s.resid})
    ),
    "heads are interleaved: each head's q, k and v are read side by side": _side_by_side,
    "heads are interleaved: channel c of head h is read at c · H + h": lambda i, s: (
        _join(_third(i, s)).reshape(len(s.ids), -1, s.config.n_head).transpose(2, 0, 1)
    ),
    "heads are split without a transposition of tokens and heads": lambda i, s: _join(
        _third(i, s)
    ).reshape(s.right.shape),
    "rotary position embeddings, which GPT-2 does not have": _rotary,
    **{
        f"c_attn's thirds are read in the order {', '.join(order)}": partial(_reordered, order)
        for order in ("qvk", "kqv", "kvq", "vqk", "vkq")
    },
}


def _scores(s: PassStep) -> Array:
    scores: Array = s["attn.q"] @ s["attn.k"].swapaxes(1, 2)
    return scores * s.config.attention_scale(s.layer)


def _pattern(s: PassStep, scale: float = 1.0, mask: Array | None = None) -> Array:
    """Return the pattern with a factor on the scale, or another mask."""
    t = len(s.ids)
    hidden = causal_mask(t, t) if mask is None else mask
    return softmax(np.where(hidden, -1e30, _scores(s) * scale))


def _offset_mask(s: PassStep, offset: int) -> Array:
    t = np.arange(len(s.ids))
    return t > t[:, None] + offset


def _softmax_over_queries(s: PassStep) -> Array:
    hidden = causal_mask(len(s.ids), len(s.ids))
    scores = np.where(hidden, -1e30, _scores(s)).swapaxes(1, 2)
    return np.where(hidden, 0.0, softmax(scores).swapaxes(1, 2))


def _head_size(s: PassStep) -> int:
    return s.config.n_embd // s.config.n_head


def _join(z: Array) -> Array:
    return z.swapaxes(0, 1).reshape(z.shape[1], -1)


def _shifted(x: Array) -> Array:
    """Return the rows one token later: row t is that of token t - 1."""
    return np.concatenate([x[..., :1, :], x[..., :-1, :]], -2)


_STEPS: dict[str, dict[str, Compute]] = {
    "embed": {
        "positions are off by one": lambda s: (
            s.weights[WTE][s.ids] + np.roll(s.weights["wpe.weight"], -1, 0)[: len(s.ids)]
        ),
        _SUBNORMALS: lambda s: _embedding(_without_subnormals(s)),
        "position embeddings are missing": lambda s: s.weights[WTE][s.ids],
        "token embeddings are multiplied by √C": lambda s: (
            s.right + s.weights[WTE][s.ids] * (math.sqrt(s.config.n_embd) - 1)
        ),
        "token ids are off by one": lambda s: (
            s.right - s.weights[WTE][s.ids] + np.roll(s.weights[WTE], -1, 0)[s.ids]
        ),
    },
    "attn.pattern": {
        "the scale 1 / √D is missing": lambda s: _pattern(s, math.sqrt(_head_size(s))),
        "the scale is 1 / D": lambda s: _pattern(s, 1 / math.sqrt(_head_size(s))),
        "the scale is 1 / √C": lambda s: _pattern(s, 1 / math.sqrt(s.config.n_head)),
        "the scale is divided by the layer + 1 (scale_attn_by_inverse_layer_idx)": lambda s: (
            _pattern(s, 1 / (s.layer + 1))
        ),
        "the scale lacks the division by the layer + 1": lambda s: _pattern(s, s.layer + 1),
        "the causal mask is missing": lambda s: _pattern(s, mask=_offset_mask(s, len(s.ids))),
        "the causal mask is off by one: each token sees the next": lambda s: (
            _pattern(s, mask=_offset_mask(s, 1))
        ),
        "the causal mask is off by one: no token sees itself": lambda s: (
            _pattern(s, mask=_offset_mask(s, -1) & (np.arange(len(s.ids)) > 0))
        ),
        "the causal mask is transposed: each token sees only later ones": lambda s: (
            _pattern(s, mask=~_offset_mask(s, 0) & ~np.eye(len(s.ids), dtype=bool))
        ),
        "softmax is over the queries": _softmax_over_queries,
        "the mask is applied after softmax": lambda s: np.where(
            causal_mask(len(s.ids), len(s.ids)), 0.0, _pattern(s, mask=_offset_mask(s, len(s.ids)))
        ),
        "the cache lags: keys are those of the token before": lambda s: _pattern(
            s.with_arrays({"attn.k": _shifted(s["attn.k"])})
        ),
        "queries and keys are exchanged": lambda s: _pattern(
            s.with_arrays({"attn.k": s["attn.q"], "attn.q": s["attn.k"]})
        ),
    },
    "attn.z": {
        "the pattern is transposed": lambda s: s["attn.pattern"].swapaxes(1, 2) @ s["attn.v"],
        "the cache lags: values are those of the token before": lambda s: (
            s["attn.pattern"] @ _shifted(s["attn.v"])
        ),
        "z: its heads are joined without a transposition of tokens and heads": lambda s: _heads(
            s.right.reshape(len(s.ids), -1), s.config.n_head
        ),
        "z: its heads are joined interleaved": lambda s: _heads(
            s.right.transpose(1, 2, 0).reshape(len(s.ids), -1), s.config.n_head
        ),
    },
    "attn.out": {
        "attention's c_proj is transposed ([in, out] read as [out, in])": lambda s: s.linear(
            _join(s["attn.z"]), "attn.c_proj", transposed=True
        ),
        "the bias of attention's c_proj is missing": lambda s: s.right - s.weight(
            "attn.c_proj.bias"
        ),
        _SUBNORMALS: lambda s: _without_subnormals(s).linear(_join(s["attn.z"]), "attn.c_proj"),
        "heads are joined without a transposition of tokens and heads": lambda s: s.linear(
            s["attn.z"].reshape(len(s.ids), -1), "attn.c_proj"
        ),
        "heads are joined interleaved": lambda s: s.linear(
            s["attn.z"].transpose(1, 2, 0).reshape(len(s.ids), -1), "attn.c_proj"
        ),
    },
    "resid_mid": {
        "the residual connection around attention is missing": lambda s: s["attn.out"],
        "post-norm: attention is added to ln_1's output": lambda s: s["ln_1"] + s["attn.out"],
        "post-norm: ln_1 is applied to the sum": lambda s: s.norm(s.right, "ln_1"),
    },
    "ln_2": {
        "attention and MLP are parallel: ln_2 reads the block's input": lambda s: (
            s.norm(s.resid, "ln_2")
        ),
    },
    "mlp.pre": {
        "c_fc is transposed ([in, out] read as [out, in])": lambda s: s.linear(
            s["ln_2"], "mlp.c_fc", transposed=True
        ),
        "c_fc's bias is missing": lambda s: s.right - s.weight("mlp.c_fc.bias"),
        _SUBNORMALS: lambda s: _without_subnormals(s).linear(s["ln_2"], "mlp.c_fc"),
        "ln_2 is not applied before the MLP": lambda s: s.linear(s["resid_mid"], "mlp.c_fc"),
    },
    "mlp.act": {
        "GELU by erf, but the config says another activation": lambda s: (
            ACTIVATIONS["gelu"](s["mlp.pre"])
        ),
        "GELU in the tanh form, but the config says another activation": lambda s: (
            ACTIVATIONS["gelu_new"](s["mlp.pre"])
        ),
        "ReLU": lambda s: np.maximum(s["mlp.pre"], 0),
        "SiLU": lambda s: ACTIVATIONS["silu"](s["mlp.pre"]),
        "GELU as x · sigmoid(1.702 x)": lambda s: (
            ACTIVATIONS["silu"](1.702 * s["mlp.pre"]) / 1.702
        ),
        "tanh GELU with 0.0044715": lambda s: _tanh_gelu(s["mlp.pre"], cubic=0.0044715),
        "tanh GELU without the factor √(2/π)": lambda s: _tanh_gelu(s["mlp.pre"], scale=1.0),
        "the activation is missing": lambda s: s["mlp.pre"],
    },
    "mlp.out": {
        "the MLP's c_proj is transposed ([in, out] read as [out, in])": lambda s: s.linear(
            s["mlp.act"], "mlp.c_proj", transposed=True
        ),
        "the bias of the MLP's c_proj is missing": lambda s: s.right - s.weight("mlp.c_proj.bias"),
        _SUBNORMALS: lambda s: _without_subnormals(s).linear(s["mlp.act"], "mlp.c_proj"),
        "the activation is not applied before c_proj": lambda s: s.linear(
            s["mlp.pre"], "mlp.c_proj"
        ),
    },
    "resid": {
        "the residual connection around the MLP is missing": lambda s: s["mlp.out"],
        "post-norm: the MLP is added to ln_2's output": lambda s: s["ln_2"] + s["mlp.out"],
        "the MLP is added to the block's input": lambda s: s.resid + s["mlp.out"],
        "post-norm: ln_2 is applied to the sum": lambda s: s.norm(s.right, "ln_2"),
    },
    "logits": {
        "ln_f is not applied before the unembedding": lambda s: s.resid @ _head(s).T,
        "the unembedding is transposed ([out, in] read as [in, out])": lambda s: (
            s["ln_f"] @ _head(s).reshape(_head(s).shape[::-1])
        ),
        "the unembedding is tied to wte, but the model has its own": lambda s: (
            s["ln_f"] @ s.weights[WTE].T
        ),
        _SUBNORMALS: lambda s: s["ln_f"] @ _head(_without_subnormals(s)).T,
        "log probabilities instead of logits": lambda s: (
            s.right - np.log(np.exp(s.right - s.right.max(-1, keepdims=True)).sum(-1))[:, None]
            - s.right.max(-1, keepdims=True)
        ),
        "logits are divided by √C": lambda s: s.right / math.sqrt(s.config.n_embd),
        "logits are those of the token before": lambda s: _shifted(s.right),
    },
}  # fmt: skip


def _float16_table(s: PassStep) -> Array:
    """Look up the activation as ggml does: from -10 to 10, in a table for x rounded to float16."""
    x = s["mlp.pre"]
    rounded = x.astype(np.float16).astype(x.dtype)
    y = ACTIVATIONS[s.config.activation_function](rounded).astype(np.float16)
    return np.where(np.abs(x) < 10, y, np.maximum(x, 0)).astype(x.dtype)


def _tanh_gelu(x: Array, scale: float = math.sqrt(2 / math.pi), cubic: float = 0.044715) -> Array:
    y: Array = 0.5 * x * (1 + np.tanh(scale * (x + cubic * x**3)))
    return y


def _embedding(s: PassStep) -> Array:
    return s.weights[WTE][s.ids] + s.weights["wpe.weight"][: len(s.ids)]


def _head(s: PassStep) -> Array:
    return s.weights.get(LM_HEAD, s.weights[WTE])


MISTAKES: tuple[Mistake, ...] = (
    *(
        Mistake(n, point, compute)
        for point, steps in _STEPS.items()
        for n, compute in steps.items()
    ),
    Mistake("GELU from a table of float16", "mlp.act", _float16_table, by_design=True),
    *(
        Mistake(name, f"attn.{letter}", partial(compute, i))
        for name, compute in _QKV.items()
        for i, letter in enumerate("qkv")
    ),
    *(mistake for norm in ("ln_1", "ln_2", "ln_f") for mistake in _norm_mistakes(norm)),
)
"""The known mistakes. Mistakes of one name show at several points, such as attn.q and attn.v."""
