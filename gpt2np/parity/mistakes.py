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
from gpt2np.generation.sampling import log_softmax
from gpt2np.kernels.array import Array, BoolArray
from gpt2np.model.gpt2 import gpt2
from gpt2np.model.ops import silu
from gpt2np.model.plain import PlainContext, PlainKV, PlainLinear, arrange_arrays
from gpt2np.runtime.hooked_context import Hook

Part = Callable[[Any, GPT2Config], Any]
"""Returns the wrong version of a part of the model, such as a weight, layer norm or scale."""
Attend = tuple[Array, PlainKV, BoolArray]
"""Queries, keys and values, and the mask."""
WrongHook = Callable[[Array, Mapping[str, Array]], Array]
"""Returns the wrong array from the right one and from the latest arrays of all hook points."""


def short_name(name: str) -> str:
    """Return the name of a hook point in its block: blocks.3.attn.q → attn.q."""
    return name.split(".", 2)[2] if name.startswith("blocks.") else name


@dataclass(frozen=True)
class Mistake:
    """A well-known mistake of GPT-2 engines.

    Attributes:
        name: what the engine does wrong.
        parts: functions that change fields of `ModelWeights` and `BlockWeights`, by field.
        config: the values of the config that the engine uses instead.
        attend: changes what attention computes with.
        hooks: functions that change an array, by the hook point in its block.
        is_expected: whether some engines, such as llama.cpp, compute so on purpose.
    """

    name: str
    parts: Mapping[str, Part] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    attend: Callable[[Array, PlainKV, BoolArray], Attend] | None = None
    hooks: Mapping[str, WrongHook] = field(default_factory=dict)
    is_expected: bool = False

    def changed(self, part: Any, config: GPT2Config) -> Any:
        """Return the weights of the model or of a block with the wrong parts."""
        fields = {name: f for name, f in self.parts.items() if hasattr(part, name)}
        return replace(part, **{name: f(getattr(part, name), config) for name, f in fields.items()})


class _Context(PlainContext):
    """A forward pass whose attention has mistakes."""

    mistakes: Sequence[Mistake] = ()

    def attention(
        self, attend: Callable[..., Array], x: Array, w: PlainLinear, layer: int
    ) -> Array:
        """Compute attention with the changed queries, keys, values and mask."""

        def changed(*inputs: Any) -> Array:
            for mistake in self.mistakes:
                inputs = mistake.attend(*inputs) if mistake.attend else inputs
            return attend(*inputs)

        return super().attention(changed, x, w, layer)


def run_with_mistakes(
    mistakes: Sequence[Mistake],
    ids: Sequence[int],
    config: GPT2Config,
    weights: Mapping[str, Array],
    hook: Hook,
) -> None:
    """Run the pass of an engine with mistakes; `hook` gets the engine's arrays."""
    arrays: dict[str, Array] = {}

    def wrong_hook(name: str, x: Array) -> Array:
        point = short_name(name)
        for mistake in mistakes:
            x = mistake.hooks[point](x, arrays) if point in mistake.hooks else x
        arrays[point] = hook(name, x)
        return arrays[point]

    for mistake in mistakes:
        config = replace(config, **mistake.config)
    w = arrange_arrays(config, weights)
    for mistake in mistakes:
        blocks = [mistake.changed(block, config) for block in w.blocks]
        w = replace(mistake.changed(w, config), blocks=blocks)
    context = _Context(ids, config, wrong_hook)
    context.mistakes = mistakes
    gpt2(context, w)


def _next_row(x: Array, config: GPT2Config) -> Array:
    return np.roll(x, -1, 0)


def _shifted(x: Any) -> Any:
    """Return the rows one token later: row t is that of token t - 1."""
    return np.concatenate([x[..., :1, :], x[..., :-1, :]], -2)


def _omit(part: Any, config: GPT2Config) -> Callable[[Array], Array]:
    return np.copy  # hooks overwrite the result


def _without_bias(layer: Any, config: GPT2Config) -> Any:
    return replace(layer, bias=np.zeros_like(layer.bias))


def _transposed(linear: PlainLinear, config: GPT2Config) -> PlainLinear:
    """Read the memory of the matrix as that of its transpose."""
    return replace(linear, weight=linear.weight.reshape(linear.weight.shape[::-1]).T)


def _columns(reorder: Callable[[Array, GPT2Config], Array]) -> dict[str, Part]:
    """Return c_attn with other columns; `reorder` gets its weight or bias as (…, 3, C)."""

    def change(linear: PlainLinear, config: GPT2Config) -> PlainLinear:
        weight, bias = (
            reorder(x.reshape(-1, 3, config.n_embd), config).reshape(x.shape)
            for x in (linear.weight, linear.bias)
        )
        return replace(linear, weight=weight, bias=bias)

    return {"c_attn": change}


def _reordered(order: str, x: Array, config: GPT2Config) -> Array:
    return x[:, ["qkv".index(letter) for letter in order]]


def _not_transposed(c_proj: PlainLinear, config: GPT2Config) -> Callable[[Array], Array]:
    """Join the heads without a transposition of tokens and heads before c_proj."""

    def project(z: Array) -> Array:
        heads = z.reshape(len(z), config.n_head, -1).swapaxes(0, 1)  # (H, T, D)
        return c_proj(heads.reshape(z.shape))

    return project


def _norms(change: Part) -> dict[str, Part]:
    return dict.fromkeys(("ln_1", "ln_2", "ln_f"), change)


def _normalized(normalize: Callable[[Array, float], Array]) -> dict[str, Part]:
    """Return layer norms that normalize differently: x and epsilon → array."""
    return _norms(lambda ln, c: lambda x: normalize(x, ln.epsilon) * ln.weight + ln.bias)


def _unbiased(x: Array, epsilon: float) -> Array:
    y: Array = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True, ddof=1) + epsilon)
    return y


def _rms_norm(x: Array, epsilon: float) -> Array:
    y: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)
    return y


def _over_tokens(x: Array, epsilon: float) -> Array:
    y: Array = (x - x.mean(0)) / np.sqrt(x.var(0) + epsilon)
    return y


def _scale(factor: Callable[[GPT2Config], float]) -> dict[str, Part]:
    return {"attention_scale": lambda scale, c: factor(c) * scale}


def _float16_table(activation: Callable[[Array], Array], config: GPT2Config) -> Any:
    """Look up the activation as ggml does: from -10 to 10, in a table for x rounded to float16."""

    def look_up(x: Array) -> Array:
        y = activation(x.astype(np.float16).astype(x.dtype))
        return np.where(np.abs(x) < 10, y.astype(np.float16), np.maximum(x, 0)).astype(x.dtype)

    return look_up


_PARTS: dict[str, Mapping[str, Part]] = {
    "positions are off by one": {"wpe": _next_row},
    "position embeddings are missing": {"wpe": lambda wpe, c: np.zeros_like(wpe)},
    "token ids are off by one": {"wte": _next_row},
    "ln_1 is missing": {"ln_1": _omit},
    "ln_2 is missing": {"ln_2": _omit},
    "ln_f is missing": {"ln_f": _omit},
    "layer norm: the bias is missing": _norms(_without_bias),
    "layer norm: the variance is divided by C - 1": _normalized(_unbiased),
    "layer norm: the mean is not subtracted (RMS norm)": _normalized(_rms_norm),
    "layer norm: over the tokens, not the channels": _normalized(_over_tokens),
    "c_attn is transposed": {"c_attn": _transposed},
    "attention's c_proj is transposed": {"attn_c_proj": _transposed},
    "c_fc is transposed": {"c_fc": _transposed},
    "the MLP's c_proj is transposed": {"mlp_c_proj": _transposed},
    "the bias of c_attn is missing": {"c_attn": _without_bias},
    "the bias of attention's c_proj is missing": {"attn_c_proj": _without_bias},
    "the bias of c_fc is missing": {"c_fc": _without_bias},
    "the bias of the MLP's c_proj is missing": {"mlp_c_proj": _without_bias},
    **{
        f"c_attn's thirds are read in the order {', '.join(order)}": _columns(
            partial(_reordered, order)
        )
        for order in ("qvk", "kqv", "kvq", "vqk", "vkq")
    },
    "heads are interleaved: each head's q, k and v are read side by side": _columns(
        lambda x, c: x.reshape(len(x), c.n_head, 3, -1).swapaxes(1, 2)
    ),
    "heads are interleaved: channel c of head h is read at c · H + h": _columns(
        lambda x, c: x.reshape(len(x), 3, -1, c.n_head).swapaxes(2, 3)
    ),
    "heads are joined without a transposition of tokens and heads": {
        "attn_c_proj": _not_transposed
    },
    "the scale 1 / √D is missing": _scale(lambda c: (c.n_embd / c.n_head) ** 0.5),
    "the scale is 1 / D": _scale(lambda c: (c.n_embd / c.n_head) ** -0.5),
    "the scale is 1 / √C": _scale(lambda c: c.n_head**-0.5),
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
_ATTEND: dict[str, Callable[[Array, PlainKV, BoolArray], Attend]] = {
    "the causal mask is missing": lambda q, kv, mask: (q, kv, np.zeros_like(mask)),
    "the causal mask is off by one: each token sees the next": lambda q, kv, mask: (
        (q, kv, np.triu(mask, 2))
    ),
    "the causal mask is off by one: no token sees itself": lambda q, kv, mask: (
        (q, kv, _shifted(mask))
    ),
    "the cache lags: keys are those of the token before": lambda q, kv, mask: (
        (q, replace(kv, keys=_shifted(kv.keys)), mask)
    ),
    "the cache lags: values are those of the token before": lambda q, kv, mask: (
        (q, replace(kv, values=_shifted(kv.values)), mask)
    ),
}
_HOOKS: dict[str, tuple[str, WrongHook]] = {
    "the residual connection around attention is missing": (
        "resid_mid",
        lambda x, a: a["attn.out"],
    ),
    "post-norm: attention is added to ln_1's output": (
        "resid_mid",
        lambda x, a: a["ln_1"] + a["attn.out"],
    ),
    "GELU as x · sigmoid(1.702 x)": ("mlp.act", lambda x, a: silu(1.702 * a["mlp.pre"]) / 1.702),
    "the activation is missing": ("mlp.act", lambda x, a: a["mlp.pre"]),
    "the residual connection around the MLP is missing": ("resid", lambda x, a: a["mlp.out"]),
    "post-norm: the MLP is added to ln_2's output": (
        "resid",
        lambda x, a: a["ln_2"] + a["mlp.out"],
    ),
    "log probabilities instead of logits": ("logits", lambda x, a: log_softmax(x)),
    "logits are those of the token before": ("logits", lambda x, a: _shifted(x)),
}

MISTAKES: tuple[Mistake, ...] = (
    *(Mistake(name, parts) for name, parts in _PARTS.items()),
    *(Mistake(name, config={key: value}) for name, (key, value) in _CONFIG.items()),
    *(Mistake(name, attend=attend) for name, attend in _ATTEND.items()),
    *(Mistake(name, hooks={point: hook}) for name, (point, hook) in _HOOKS.items()),
    Mistake(
        "the mask is applied after softmax",
        attend=lambda q, kv, mask: (q, kv, np.zeros_like(mask)),
        hooks={"attn.pattern": lambda x, a: np.tril(x)},
    ),
    Mistake(
        "softmax is over the queries",
        attend=lambda q, kv, mask: (kv.keys, replace(kv, keys=q), mask.T),
        hooks={"attn.pattern": lambda x, a: x.swapaxes(1, 2)},
    ),
    Mistake("GELU from a table of float16", {"activation": _float16_table}, is_expected=True),
)
"""The known mistakes. Each shows wherever a changed part or array is used."""
