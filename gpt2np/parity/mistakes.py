"""Known mistakes of GPT-2 engines: each changes weights, the config, or some arrays of the pass.

`check` runs the pass of `gpt2np.model.gpt2` with each mistake, and compares the tested engine's
arrays with it.

Shape letters: T tokens, C channels, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.checkpoint.names import LM_HEAD, WTE
from gpt2np.generation.sampling import log_softmax
from gpt2np.kernels.array import Array, BoolArray
from gpt2np.model.ops import ACTIVATIONS, causal_mask, causal_softmax, silu


def split_name(name: str) -> tuple[str, str]:
    """Split the name of an array or weight of a block: blocks.3.attn.q → 3 and attn.q."""
    parts = name.split(".", 2)
    return (parts[1], parts[2]) if parts[0] in ("blocks", "h") else ("", name)


@dataclass(frozen=True)
class PassStep:
    """One step of the pass: `name` is the hook point, `right` the array that the page computes.

    `step[name]` is the latest array of a hook point, or the weight of this name in the same block;
    `step["resid"]` is the residual stream before the block, or after the last block.
    """

    name: str
    right: Array
    arrays: Mapping[str, Array]
    weights: Mapping[str, Array]
    config: GPT2Config

    def __getitem__(self, name: str) -> Array:
        block = split_name(self.name)[0]
        if name.endswith((".weight", ".bias")):
            return self.weights[f"h.{block}.{name}" if block else name]
        names = (name, "embed") if name == "resid" else (name,)
        return [array for n, array in self.arrays.items() if split_name(n)[1] in names][-1]

    @property
    def scale(self) -> float:
        """The factor of the block's attention scores."""
        return self.config.attention_scale(int(split_name(self.name)[0]))

    def linear(self, x: Array, name: str) -> Array:
        """Return the output of a linear layer."""
        y: Array = x @ self[f"{name}.weight"] + self[f"{name}.bias"]
        return y


Compute = Callable[[PassStep], Array]


@dataclass(frozen=True)
class Mistake:
    """A well-known mistake of GPT-2 engines.

    Attributes:
        name: what the engine does wrong.
        weights: functions that change weights, by the weight's name in its block.
        config: the values of the config that the engine uses instead.
        arrays: functions that compute an array wrongly, by the hook point in its block.
        is_expected: whether some engines, such as llama.cpp, compute the array so on purpose.
    """

    name: str
    weights: Mapping[str, Callable[[Array], Array]] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Compute] = field(default_factory=dict)
    is_expected: bool = False

    def changed_weights(self, weights: Mapping[str, Array]) -> dict[str, Array]:
        """Return the weights of an engine with this mistake; the unembedding is no other's copy."""
        weights = {LM_HEAD: weights[WTE], **weights}
        return {
            name: self.weights.get(split_name(name)[1], np.asarray)(array)
            for name, array in weights.items()
        }


def _transposed(weight: Array) -> Array:
    """Read the memory of a matrix as that of its transpose."""
    return weight.reshape(weight.shape[::-1]).T


def _next_row(x: Array) -> Array:
    return np.roll(x, -1, 0)


def _reordered(order: str, c_attn: Array) -> Array:
    """Return c_attn's weight or bias with its thirds q, k and v in another order."""
    return np.concatenate([np.split(c_attn, 3, -1)["qkv".index(letter)] for letter in order], -1)


def _shifted(x: Array) -> Array:
    """Return the rows one token later: row t is that of token t - 1."""
    return np.concatenate([x[..., :1, :], x[..., :-1, :]], -2)


def _join(z: Array) -> Array:
    """Join the heads: (H, T, D) → (T, C)."""
    return z.swapaxes(0, 1).reshape(z.shape[1], -1)


def _side_by_side(third: int, s: PassStep) -> Array:
    """Return q, k or v (0, 1 or 2) of an engine that reads them head by head."""
    qkv = s.linear(s["ln_1"], "attn.c_attn")
    return qkv.reshape(len(qkv), s.config.n_head, 3, -1)[:, :, third].swapaxes(0, 1)


def _interleaved(s: PassStep) -> Array:
    """Return q, k or v of an engine that reads channel c of head h at c · H + h."""
    joined = _join(s.right)
    return joined.reshape(len(joined), -1, s.config.n_head).transpose(2, 0, 1)


def _attend(
    change: Callable[[BoolArray], BoolArray],
    s: PassStep,
    keys: Array | None = None,
    factor: float = 1,
) -> Array:
    """Return the attention pattern with a changed mask, other keys, or a factor of the scale."""
    keys = s["attn.k"] if keys is None else keys
    mask = change(causal_mask(keys.shape[1], keys.shape[1]))
    return causal_softmax(s["attn.q"] @ keys.swapaxes(1, 2) * (factor * s.scale), mask)


def _scaled_by(factor: Callable[[PassStep], float]) -> Compute:
    return lambda s: _attend(np.asarray, s, factor=factor(s))


def _softmax_over_queries(s: PassStep) -> Array:
    scores = s["attn.k"] @ s["attn.q"].swapaxes(1, 2) * s.scale
    return causal_softmax(scores, causal_mask(len(scores[0]), len(scores[0])).T).swapaxes(1, 2)


def _normalized(normalize: Callable[[Array, float], Array]) -> dict[str, Compute]:
    """Return the layer norms of an engine that normalizes differently: x and epsilon → array."""

    def norm(name: str, read: str, s: PassStep) -> Array:
        y = normalize(s[read], s.config.layer_norm_epsilon)
        return y * s[f"{name}.weight"] + s[f"{name}.bias"]

    reads = {"ln_1": "resid", "ln_2": "resid_mid", "ln_f": "resid"}
    return {name: partial(norm, name, read) for name, read in reads.items()}


def _unbiased(x: Array, epsilon: float) -> Array:
    y: Array = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True, ddof=1) + epsilon)
    return y


def _rms_norm(x: Array, epsilon: float) -> Array:
    y: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)
    return y


def _over_tokens(x: Array, epsilon: float) -> Array:
    y: Array = (x - x.mean(0)) / np.sqrt(x.var(0) + epsilon)
    return y


def _float16_table(s: PassStep) -> Array:
    """Look up the activation as ggml does: from -10 to 10, in a table for x rounded to float16."""
    x = s["mlp.pre"]
    rounded = x.astype(np.float16).astype(x.dtype)
    y = ACTIVATIONS[s.config.activation_function](rounded).astype(np.float16)
    return np.where(np.abs(x) < 10, y, np.maximum(x, 0)).astype(x.dtype)


def _not_transposed(s: PassStep) -> Array:
    """Return the output of attention whose heads are joined without a transposition."""
    return s.linear(s["attn.z"].reshape(s["attn.z"].shape[1], -1), "attn.c_proj")


_WEIGHTS: dict[str, tuple[Callable[[Array], Array], tuple[str, ...]]] = {
    "positions are off by one": (_next_row, ("wpe.weight",)),
    "position embeddings are missing": (np.zeros_like, ("wpe.weight",)),
    "token ids are off by one": (_next_row, (WTE,)),
    "layer norm: the bias is missing": (np.zeros_like, ("ln_1.bias", "ln_2.bias", "ln_f.bias")),
    "c_attn is transposed": (_transposed, ("attn.c_attn.weight",)),
    "attention's c_proj is transposed": (_transposed, ("attn.c_proj.weight",)),
    "c_fc is transposed": (_transposed, ("mlp.c_fc.weight",)),
    "the MLP's c_proj is transposed": (_transposed, ("mlp.c_proj.weight",)),
    "the bias of c_attn is missing": (np.zeros_like, ("attn.c_attn.bias",)),
    "the bias of attention's c_proj is missing": (np.zeros_like, ("attn.c_proj.bias",)),
    "the bias of c_fc is missing": (np.zeros_like, ("mlp.c_fc.bias",)),
    "the bias of the MLP's c_proj is missing": (np.zeros_like, ("mlp.c_proj.bias",)),
    **{
        f"c_attn's thirds are read in the order {', '.join(order)}": (
            partial(_reordered, order),
            ("attn.c_attn.weight", "attn.c_attn.bias"),
        )
        for order in ("qvk", "kqv", "kvq", "vqk", "vkq")
    },
}
_CONFIG: dict[str, tuple[str, Any]] = {
    "layer norm: epsilon is 1e-3": ("layer_norm_epsilon", 1e-3),
    "layer norm: epsilon is 1e-6": ("layer_norm_epsilon", 1e-6),
    "layer norm: epsilon is 1e-12 or missing": ("layer_norm_epsilon", 1e-12),
    "the scale is divided by the layer + 1": ("scale_attn_by_inverse_layer_idx", True),
    "the scale lacks the division by the layer + 1": ("scale_attn_by_inverse_layer_idx", False),
    "GELU by erf instead of the config's activation": ("activation_function", "gelu"),
    "GELU in the tanh form instead of the config's activation": ("activation_function", "gelu_new"),
    "ReLU instead of the config's activation": ("activation_function", "relu"),
}
_ARRAYS: dict[str, tuple[str, Compute]] = {
    "ln_1 is missing": ("ln_1", lambda s: s["resid"]),
    "the scale 1 / √D is missing": (
        "attn.pattern",
        _scaled_by(lambda s: s["attn.q"].shape[-1] ** 0.5),
    ),
    "the scale is 1 / D": ("attn.pattern", _scaled_by(lambda s: s["attn.q"].shape[-1] ** -0.5)),
    "the scale is 1 / √C": ("attn.pattern", _scaled_by(lambda s: s.config.n_head**-0.5)),
    "the causal mask is missing": ("attn.pattern", partial(_attend, np.zeros_like)),
    "the causal mask is off by one: each token sees the next": (
        "attn.pattern",
        partial(_attend, lambda mask: np.triu(mask, 2)),
    ),
    "the causal mask is off by one: no token sees itself": (
        "attn.pattern",
        partial(_attend, _shifted),
    ),
    "the mask is applied after softmax": (
        "attn.pattern",
        lambda s: np.tril(_attend(np.zeros_like, s)),
    ),
    "softmax is over the queries": ("attn.pattern", _softmax_over_queries),
    "the cache lags: keys are those of the token before": (
        "attn.pattern",
        lambda s: _attend(np.asarray, s, _shifted(s["attn.k"])),
    ),
    "the cache lags: values are those of the token before": (
        "attn.z",
        lambda s: s["attn.pattern"] @ _shifted(s["attn.v"]),
    ),
    "heads are joined without a transposition of tokens and heads": ("attn.out", _not_transposed),
    "the residual connection around attention is missing": ("resid_mid", lambda s: s["attn.out"]),
    "post-norm: attention is added to ln_1's output": (
        "resid_mid",
        lambda s: s["ln_1"] + s["attn.out"],
    ),
    "ln_2 is missing": ("ln_2", lambda s: s["resid_mid"]),
    "GELU as x · sigmoid(1.702 x)": ("mlp.act", lambda s: silu(1.702 * s["mlp.pre"]) / 1.702),
    "the activation is missing": ("mlp.act", lambda s: s["mlp.pre"]),
    "the residual connection around the MLP is missing": ("resid", lambda s: s["mlp.out"]),
    "post-norm: the MLP is added to ln_2's output": ("resid", lambda s: s["ln_2"] + s["mlp.out"]),
    "ln_f is missing": ("ln_f", lambda s: s["resid"]),
    "log probabilities instead of logits": ("logits", lambda s: log_softmax(s.right)),
    "logits are those of the token before": ("logits", lambda s: _shifted(s.right)),
}

MISTAKES: tuple[Mistake, ...] = (
    *(Mistake(name, dict.fromkeys(keys, change)) for name, (change, keys) in _WEIGHTS.items()),
    *(Mistake(name, config={key: value}) for name, (key, value) in _CONFIG.items()),
    *(Mistake(name, arrays={point: compute}) for name, (point, compute) in _ARRAYS.items()),
    Mistake("layer norm: the variance is divided by C - 1", arrays=_normalized(_unbiased)),
    Mistake("layer norm: the mean is not subtracted (RMS norm)", arrays=_normalized(_rms_norm)),
    Mistake("layer norm: over the tokens, not the channels", arrays=_normalized(_over_tokens)),
    Mistake(
        "heads are interleaved: each head's q, k and v are read side by side",
        arrays={f"attn.{name}": partial(_side_by_side, i) for i, name in enumerate("qkv")},
    ),
    Mistake(
        "heads are interleaved: channel c of head h is read at c · H + h",
        arrays=dict.fromkeys(("attn.q", "attn.k", "attn.v"), _interleaved),
    ),
    Mistake("GELU from a table of float16", arrays={"mlp.act": _float16_table}, is_expected=True),
)
"""The known mistakes. Each shows wherever a changed weight, value or array is used."""
