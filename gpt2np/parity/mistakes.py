"""Classic mistakes of GPT-2 engines: each a variation of one step of the forward pass.

A mistake computes the array at a hook point from the arrays before it, as an engine with that
mistake does. `check` tries the mistakes of the step at which a tested engine first differs.

Shape letters: T tokens, C channels, H heads, D head size, F neurons, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial

import numpy as np

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.checkpoint.names import LM_HEAD, WTE
from gpt2np.generation.sampling import log_softmax
from gpt2np.kernels.array import Array
from gpt2np.model.ops import (
    ACTIVATIONS,
    causal_mask,
    causal_softmax,
    gelu,
    gelu_new,
    layer_norm,
    relu,
    silu,
)

_LINEAR = {  # the input and the layer of each step that is a linear layer
    **dict.fromkeys(("attn.q", "attn.k", "attn.v"), ("ln_1", "attn.c_attn")),
    "attn.out": ("attn.z", "attn.c_proj"),
    "mlp.pre": ("ln_2", "mlp.c_fc"),
    "mlp.out": ("mlp.act", "mlp.c_proj"),
}


def split_name(name: str) -> tuple[str, str]:
    """Split the name of an array or weight of a block: blocks.3.attn.q → 3 and attn.q."""
    parts = name.split(".", 2)
    return (parts[1], parts[2]) if parts[0] in ("blocks", "h") else ("", name)


class PassStep:
    """A step of the pass: the array at one hook point, and what the step reads.

    Attributes:
        right: the array that the step should compute.
        point: the hook point, without the block.
        layer: the index of the block; 0 outside of the blocks.
        inputs: earlier arrays and weights of the same block or, outside of the blocks, of the
            model. "resid" is the residual stream before the block or after the last block, and
            "mask" the causal mask.
    """

    def __init__(
        self,
        full_name: str,
        right: Array,
        arrays: Mapping[str, Array],
        weights: Mapping[str, Array],
        config: GPT2Config,
        ids: Sequence[int],
    ) -> None:
        """Collect what the step at a hook point reads; `arrays` are the earlier ones, in order."""
        block, self.point = split_name(full_name)
        self.right, self.layer, self.config, self.ids = right, int(block or 0), config, ids
        self.inputs = {"mask": causal_mask(len(ids), len(ids)), LM_HEAD: weights[WTE]}
        for other_name, array in (*arrays.items(), *weights.items()):
            other_block, name = split_name(other_name)
            if other_block == block:
                self.inputs[name] = array
            if name in ("embed", "resid"):
                self.inputs["resid"] = array

    def __getitem__(self, name: str) -> Array:
        return self.inputs[name]

    def compute(self, changed: Mapping[str, Array]) -> Array:
        """Compute the step from its inputs, some of them changed."""
        s = copy(self)
        s.inputs = {**self.inputs, **changed}
        if s.point == "embed":
            return s[WTE][s.ids] + s["wpe.weight"][: len(s.ids)]
        if s.point.startswith("ln_"):
            return s.norm(s.norm_input, s.point)
        if s.point == "attn.pattern":
            scores = s["attn.q"] @ s["attn.k"].swapaxes(1, 2)
            return causal_softmax(scores * s.config.attention_scale(s.layer), s["mask"])
        if s.point == "attn.z":
            return s["attn.pattern"] @ s["attn.v"]
        if s.point == "logits":
            return s["ln_f"] @ s[LM_HEAD].T
        name, layer = _LINEAR[s.point]
        x = _join(s[name]) if name == "attn.z" else s[name]
        y: Array = x @ s[f"{layer}.weight"] + s[f"{layer}.bias"]
        if layer != "attn.c_attn":
            return y
        return _heads(np.split(y, 3, -1)["qkv".index(s.point[-1])], s.config.n_head)

    @property
    def norm_input(self) -> Array:
        """The array that the layer norm of this step reads."""
        return self["resid_mid" if self.point == "ln_2" else "resid"]

    def norm(self, x: Array, name: str) -> Array:
        """Return the layer norm of x."""
        weight, bias = self[f"{name}.weight"], self[f"{name}.bias"]
        return layer_norm(x, weight, bias, self.config.layer_norm_epsilon)


Compute = Callable[[PassStep], Array]


@dataclass(frozen=True)
class Mistake:
    """A well-known mistake of GPT-2 engines.

    Attributes:
        name: what the engine does wrong.
        point: the hook point at which the mistake shows first, without the block.
        compute: the array that an engine with this mistake has at the point.
        is_expected: whether some engines, such as llama.cpp, compute the step so on purpose.
    """

    name: str
    point: str
    compute: Compute
    is_expected: bool = False


def _from(change: Callable[[Array], Array], *names: str) -> Compute:
    """Return the step of an engine that changes these inputs."""
    return lambda s: s.compute({name: change(s[name]) for name in names})


def _reads(name: str, expected: str) -> Compute:
    """Return the step of an engine that reads an input instead of the expected one."""
    return lambda s: s.compute({expected: s[name]})


_Normalize = Callable[[Array, Array, Array, float], Array]
_NORMALIZATIONS: dict[str, _Normalize] = {  # of x, its mean and variance, and epsilon
    "epsilon is 1e-6": lambda x, m, v, e: (x - m) / np.sqrt(v + 1e-6),
    "epsilon is 1e-12 or missing": lambda x, m, v, e: (x - m) / np.sqrt(v + 1e-12),
    "epsilon is 1e-3": lambda x, m, v, e: (x - m) / np.sqrt(v + 1e-3),
    "epsilon is added outside of the root": lambda x, m, v, e: (x - m) / (np.sqrt(v) + e),
    "the variance is divided by C - 1": lambda x, m, v, e: (
        (x - m) / np.sqrt(v * x.shape[-1] / (x.shape[-1] - 1) + e)
    ),
    "the mean is not subtracted (RMS norm)": lambda x, m, v, e: x / np.sqrt(v + m * m + e),
    "the variance is the mean square, without subtracting the mean": lambda x, m, v, e: (
        (x - m) / np.sqrt(v + m * m + e)
    ),
    "divided by the variance, without the root": lambda x, m, v, e: (x - m) / (v + e),
    "over the tokens, not the channels": lambda x, m, v, e: (x - x.mean(0)) / np.sqrt(x.var(0) + e),
}


def _normalized(s: PassStep, normalize: _Normalize) -> Array:
    """Return the layer norm of an engine that normalizes differently."""
    x = s.norm_input
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    y = normalize(x, mean, variance, s.config.layer_norm_epsilon)
    return y * s[f"{s.point}.weight"] + s[f"{s.point}.bias"]


def _without_weights(s: PassStep) -> Array:
    """Return the layer norm without weight and bias."""
    return s.compute({f"{s.point}.weight": np.ones(()), f"{s.point}.bias": np.zeros(())})


def _without_subnormals(s: PassStep) -> Array:
    weights = [name for name in s.inputs if name.endswith((".weight", ".bias"))]
    return _from(lambda w: np.where(np.abs(w) < 2.0**-14, 0, w), *weights)(s)


def _transposed(weight: Array) -> Array:
    """Read the memory of a matrix as that of its transpose."""
    return weight.reshape(weight.shape[::-1]).T


def _next_row(x: Array) -> Array:
    return np.roll(x, -1, 0)


def _shifted(x: Array) -> Array:
    """Return the rows one token later: row t is that of token t - 1."""
    return np.concatenate([x[..., :1, :], x[..., :-1, :]], -2)


def _heads(x: Array, n_head: int) -> Array:
    """Split the channels (T, C) into heads (H, T, D)."""
    return x.reshape(len(x), n_head, -1).swapaxes(0, 1)


def _join(z: Array) -> Array:
    return z.swapaxes(0, 1).reshape(z.shape[1], -1)


def _not_transposed(z: Array) -> Array:
    """Return z as joined without a transposition, then split into heads."""
    return _heads(z.reshape(z.shape[1], -1), len(z))


def _interleaved(z: Array) -> Array:
    """Return z as joined with channel c of head h at c · H + h, then split into heads."""
    return _heads(z.transpose(1, 2, 0).reshape(z.shape[1], -1), len(z))


def _reordered(order: str, c_attn: Array) -> Array:
    """Return c_attn's weight or bias with its thirds q, k and v in another order."""
    return np.concatenate([np.split(c_attn, 3, -1)["qkv".index(letter)] for letter in order], -1)


def _side_by_side(s: PassStep) -> Array:
    def by_head(c_attn: Array) -> Array:
        columns = c_attn.reshape(*c_attn.shape[:-1], s.config.n_head, 3, -1)
        return columns.swapaxes(-3, -2).reshape(c_attn.shape)

    return _from(by_head, *_C_ATTN)(s)


def _rotary(s: PassStep) -> Array:
    half = s.right.shape[-1] // 2
    angle = np.arange(len(s.ids))[:, None] * 10000.0 ** (-np.arange(half) / max(half, 1))
    x, y, rest = np.split(s.right, [half, 2 * half], -1)
    cos, sin = np.cos(angle), np.sin(angle)
    rotated = np.concatenate([x * cos - y * sin, y * cos + x * sin, rest], 2)
    return s.right if s.point == "attn.v" else rotated


def _tanh_gelu(x: Array, scale: float = math.sqrt(2 / math.pi), cubic: float = 0.044715) -> Array:
    y: Array = 0.5 * x * (1 + np.tanh(scale * (x + cubic * x**3)))
    return y


def _float16_table(s: PassStep) -> Array:
    """Look up the activation as ggml does: from -10 to 10, in a table for x rounded to float16."""
    x = s["mlp.pre"]
    rounded = x.astype(np.float16).astype(x.dtype)
    y = ACTIVATIONS[s.config.activation_function](rounded).astype(np.float16)
    return np.where(np.abs(x) < 10, y, np.maximum(x, 0)).astype(x.dtype)


_C_ATTN = "attn.c_attn.weight", "attn.c_attn.bias"
_MEMORY = "is transposed ([in, out] read as [out, in])"

_STEPS: dict[str, dict[str, Compute]] = {  # by hook points
    "embed": {
        "positions are off by one": _from(_next_row, "wpe.weight"),
        "position embeddings are missing": _from(np.zeros_like, "wpe.weight"),
        "token embeddings are multiplied by √C": _from(lambda w: w * w.shape[1] ** 0.5, WTE),
        "token ids are off by one": _from(_next_row, WTE),
    },
    "attn.q attn.k attn.v": {
        f"c_attn's matrix {_MEMORY}": _from(_transposed, "attn.c_attn.weight"),
        "c_attn's bias is missing": _from(np.zeros_like, "attn.c_attn.bias"),
        "keys and values get the query part of c_attn's bias instead of their own": _from(
            partial(_reordered, "qqq"), "attn.c_attn.bias"
        ),
        "ln_1 is not applied before attention": _reads("resid", "ln_1"),
        "heads are interleaved: each head's q, k and v are read side by side": _side_by_side,
        "heads are interleaved: channel c of head h is read at c · H + h": lambda s: (
            _join(s.right).reshape(len(s.ids), -1, s.config.n_head).transpose(2, 0, 1)
        ),
        "heads are split without a transposition of tokens and heads": lambda s: _join(
            s.right
        ).reshape(s.right.shape),
        "rotary position embeddings, which GPT-2 does not have": _rotary,
        **{
            f"c_attn's thirds are read in the order {', '.join(order)}": _from(
                partial(_reordered, order), *_C_ATTN
            )
            for order in ("qvk", "kqv", "kvq", "vqk", "vkq")
        },
    },
    "attn.pattern": {
        "the scale 1 / √D is missing": _from(lambda q: q * math.sqrt(q.shape[-1]), "attn.q"),
        "the scale is 1 / D": _from(lambda q: q / math.sqrt(q.shape[-1]), "attn.q"),
        "the scale is 1 / √C": _from(lambda q: q / math.sqrt(len(q)), "attn.q"),
        "the scale is divided by the layer + 1 (scale_attn_by_inverse_layer_idx)": lambda s: (
            s.compute({"attn.q": s["attn.q"] / (s.layer + 1)})
        ),
        "the scale lacks the division by the layer + 1": lambda s: s.compute(
            {"attn.q": s["attn.q"] * (s.layer + 1)}
        ),
        "the causal mask is missing": _from(np.zeros_like, "mask"),
        "the causal mask is off by one: each token sees the next": _from(
            lambda mask: np.triu(mask, 2), "mask"
        ),
        "the causal mask is off by one: no token sees itself": _from(_shifted, "mask"),
        "the causal mask is transposed: each token sees only later ones": _from(
            np.transpose, "mask"
        ),
        "softmax is over the queries": lambda s: s.compute(
            {"attn.q": s["attn.k"], "attn.k": s["attn.q"], "mask": s["mask"].T}
        ).swapaxes(1, 2),
        "the mask is applied after softmax": lambda s: np.where(
            s["mask"], 0, s.compute({"mask": np.zeros_like(s["mask"])})
        ),
        "the cache lags: keys are those of the token before": _from(_shifted, "attn.k"),
        "queries and keys are exchanged": lambda s: s.compute(
            {"attn.k": s["attn.q"], "attn.q": s["attn.k"]}
        ),
    },
    "attn.z": {
        "the pattern is transposed": _from(lambda p: p.swapaxes(1, 2), "attn.pattern"),
        "the cache lags: values are those of the token before": _from(_shifted, "attn.v"),
        "z: its heads are joined without a transposition of tokens and heads": lambda s: (
            _not_transposed(s.right)
        ),
        "z: its heads are joined interleaved": lambda s: _interleaved(s.right),
    },
    "attn.out": {
        f"attention's c_proj {_MEMORY}": _from(_transposed, "attn.c_proj.weight"),
        "the bias of attention's c_proj is missing": lambda s: s.right - s["attn.c_proj.bias"],
        "heads are joined without a transposition of tokens and heads": _from(
            _not_transposed, "attn.z"
        ),
        "heads are joined interleaved": _from(_interleaved, "attn.z"),
    },
    "resid_mid": {
        "the residual connection around attention is missing": lambda s: s["attn.out"],
        "post-norm: attention is added to ln_1's output": lambda s: s["ln_1"] + s["attn.out"],
        "post-norm: ln_1 is applied to the sum": lambda s: s.norm(s.right, "ln_1"),
    },
    "mlp.pre": {
        f"c_fc {_MEMORY}": _from(_transposed, "mlp.c_fc.weight"),
        "c_fc's bias is missing": lambda s: s.right - s["mlp.c_fc.bias"],
        "ln_2 is not applied before the MLP": _reads("resid_mid", "ln_2"),
    },
    "mlp.act": {
        "GELU by erf, but the config says another activation": lambda s: gelu(s["mlp.pre"]),
        "GELU in the tanh form, but the config says another activation": lambda s: gelu_new(
            s["mlp.pre"]
        ),
        "ReLU": lambda s: relu(s["mlp.pre"]),
        "SiLU": lambda s: silu(s["mlp.pre"]),
        "GELU as x · sigmoid(1.702 x)": lambda s: silu(1.702 * s["mlp.pre"]) / 1.702,
        "tanh GELU with 0.0044715": lambda s: _tanh_gelu(s["mlp.pre"], cubic=0.0044715),
        "tanh GELU without the factor √(2/π)": lambda s: _tanh_gelu(s["mlp.pre"], scale=1.0),
        "the activation is missing": lambda s: s["mlp.pre"],
    },
    "mlp.out": {
        f"the MLP's c_proj {_MEMORY}": _from(_transposed, "mlp.c_proj.weight"),
        "the bias of the MLP's c_proj is missing": lambda s: s.right - s["mlp.c_proj.bias"],
        "the activation is not applied before c_proj": _reads("mlp.pre", "mlp.act"),
    },
    "resid": {
        "the residual connection around the MLP is missing": lambda s: s["mlp.out"],
        "post-norm: the MLP is added to ln_2's output": lambda s: s["ln_2"] + s["mlp.out"],
        "the MLP is added to the block's input": lambda s: s["resid"] + s["mlp.out"],
        "post-norm: ln_2 is applied to the sum": lambda s: s.norm(s.right, "ln_2"),
    },
    "logits": {
        "ln_f is not applied before the unembedding": _reads("resid", "ln_f"),
        "the unembedding is transposed ([out, in] read as [in, out])": _from(_transposed, LM_HEAD),
        "the unembedding is tied to wte, but the model has its own": _reads(WTE, LM_HEAD),
        "log probabilities instead of logits": lambda s: log_softmax(s.right),
        "logits are divided by √C": lambda s: s.right / math.sqrt(s.config.n_embd),
        "logits are those of the token before": lambda s: _shifted(s.right),
    },
    "embed attn.q attn.k attn.v attn.out mlp.pre mlp.out logits": {
        "subnormal float16 weights (magnitude below 2⁻¹⁴) are read as 0": _without_subnormals,
    },
    "ln_1 ln_2 ln_f": {
        **{
            f"layer norm: {name}": partial(_normalized, normalize=function)
            for name, function in _NORMALIZATIONS.items()
        },
        "layer norm: the bias is missing": lambda s: s.right - s[f"{s.point}.bias"],
        "layer norm: weight and bias are missing": _without_weights,
        "layer norm: the weight is 1 + weight": lambda s: s.right + _without_weights(s),
    },
    "ln_1 ln_2": {
        "layer norm: ln_1 and ln_2 are exchanged": lambda s: s.norm(
            s.norm_input, "ln_2" if s.point == "ln_1" else "ln_1"
        ),
    },
    "ln_1": {"ln_1 is missing": lambda s: s.norm_input},
    "ln_2": {
        "ln_2 is missing": lambda s: s.norm_input,
        "attention and MLP are parallel: ln_2 reads the block's input": _reads(
            "resid", "resid_mid"
        ),
    },
    "ln_f": {"ln_f is missing": lambda s: s.norm_input},
}

MISTAKES: tuple[Mistake, ...] = (
    *(
        Mistake(name, point, compute)
        for points, steps in _STEPS.items()
        for point in points.split()
        for name, compute in steps.items()
    ),
    Mistake("GELU from a table of float16", "mlp.act", _float16_table, is_expected=True),
)
"""The known mistakes. Mistakes of one name show at several points, such as attn.q and attn.v."""
