"""Hook points: the arrays of the forward pass that a hook can read and edit.

`HOOK_POINTS` lists the hook points in the order of the pass. A pattern is the name of a hook point,
or TransformerLens's name for the same array (`blocks.3.hook_resid_post`). In a pattern, `*` stands
for any characters (`blocks.*.attn.pattern`).

Differences from TransformerLens: arrays have no batch axis, and the head axis comes first:
(H, T, D) instead of (batch, T, H, D). These hook points are missing, because this forward pass has
no arrays for them: `hook_embed` and `hook_pos_embed` (`embed` is their sum), `hook_attn_scores`,
and `hook_scale` of `ln1`, `ln2` and `ln_final`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import DTypeLike

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.errors import InvalidArgumentError, check_argument, did_you_mean, short_repr


@dataclass(frozen=True)
class HookPoint:
    """A kind of array that hooks can read and edit inside the forward pass.

    Attributes:
        name: the name passed to the hook, with `{i}` for the block's number.
        shape: a letter per axis: T tokens, C channels, H heads, D head size, F MLP, V vocabulary.
        aliases: TransformerLens's names, with `{i}` for this block and `{next}` for the next.
        meaning: a short description.
    """

    name: str
    shape: str
    aliases: tuple[str, ...]
    meaning: str

    @property
    def by_head(self) -> bool:
        """Whether the array's first axis is the head axis."""
        return self.shape.startswith("H")


_WITHIN_BLOCKS = (
    ("ln_1", "T C", "ln1.hook_normalized", "layer norm of the resid"),
    ("attn.q", "H T D", "attn.hook_q", "queries before scaling"),
    ("attn.k", "H T D", "attn.hook_k", "keys"),
    ("attn.v", "H T D", "attn.hook_v", "values"),
    ("attn.pattern", "H T T", "attn.hook_pattern", "attention weights: queries by keys"),
    ("attn.z", "H T D", "attn.hook_z", "values weighted by the pattern"),
    ("attn.out", "T C", "hook_attn_out", "attention output"),
    ("resid_mid", "T C", "hook_resid_mid", "resid after attention"),
    ("ln_2", "T C", "ln2.hook_normalized", "layer norm of resid_mid"),
    ("mlp.pre", "T F", "mlp.hook_pre", "neurons before activation"),
    ("mlp.act", "T F", "mlp.hook_post", "neurons after activation"),
    ("mlp.out", "T C", "hook_mlp_out", "MLP output"),
)

HOOK_POINTS = (
    HookPoint("embed", "T C", ("blocks.0.hook_resid_pre",), "token embedding + position embedding"),
    *(
        HookPoint(f"blocks.{{i}}.{name}", shape, (f"blocks.{{i}}.{alias}",), meaning)
        for name, shape, alias, meaning in _WITHIN_BLOCKS
    ),
    HookPoint(
        "blocks.{i}.resid",
        "T C",
        ("blocks.{i}.hook_resid_post", "blocks.{next}.hook_resid_pre"),
        "residual stream after the block",
    ),
    HookPoint("ln_f", "T C", ("ln_final.hook_normalized",), "final layer norm"),
    HookPoint("logits", "T V", (), "logits of the next token"),
)
"""All hook points in the order of the pass. A name with `{i}` stands for one array per block."""

_BY_NAME = {point.name: point for point in HOOK_POINTS}


def hook_point_names(n_layer: int) -> list[str]:
    """Return all hook point names of a model with `n_layer` blocks, in the order of the pass."""
    templates = [point.name for point in HOOK_POINTS if "{i}" in point.name]
    inner = [template.format(i=i) for i in range(n_layer) for template in templates]
    return ["embed", *inner, "ln_f", "logits"]


def get_hook_point(name: str) -> HookPoint:
    """Return the hook point with a given name, such as "blocks.3.attn.q".

    Raises:
        InvalidArgumentError: there is no such hook point.
    """
    point = _BY_NAME.get(re.sub(r"^blocks\.\d+\.", "blocks.{i}.", name))
    if point is None:
        raise InvalidArgumentError(_unknown(name, 1))
    return point


def all_names(name: str, n_layer: int | None = None) -> list[str]:
    """Return the name of a hook point and its aliases in a model with `n_layer` blocks.

    The last block's output has no alias `hook_resid_pre`, because no block follows. If `n_layer` is
    None, no block counts as the last block.
    """
    number = re.match(r"blocks\.([0-9]{1,9})\.", name)
    i = int(number[1]) if number else 0
    is_last = i + 1 == n_layer
    aliases = [a for a in get_hook_point(name).aliases if not (is_last and "{next}" in a)]
    return [name, *(alias.format(i=i, next=i + 1) for alias in aliases)]


@lru_cache(maxsize=1 << 14)
def matches(name: str, pattern: str, n_layer: int | None = None) -> bool:
    """Tell whether a pattern matches the name or an alias of a hook point."""
    expression = ".*".join(map(re.escape, re.split(r"\*+", pattern)))
    return any(re.fullmatch(expression, alias) for alias in all_names(name, n_layer))


def select_hook_points(patterns: str | Sequence[str], n_layer: int) -> list[str]:
    """Return the hook points that match any of the patterns, in the order of the pass.

    Raises:
        InvalidArgumentError: a pattern matches no hook point; the message suggests a name.
    """
    patterns = [patterns] if isinstance(patterns, str) else patterns
    is_list = isinstance(patterns, Sequence) and all(isinstance(name, str) for name in patterns)
    check_argument(is_list, "points", patterns, "the name of a hook point or a list of names")
    names = hook_point_names(n_layer)
    for pattern in patterns:
        if not any(matches(name, pattern, n_layer) for name in names):
            raise InvalidArgumentError(_unknown(pattern, n_layer))
    return [name for name in names if any(matches(name, p, n_layer) for p in patterns)]


def hook_points_nbytes(
    config: GPT2Config,
    tokens: int,
    points: str | Sequence[str] = "*",
    dtype: DTypeLike = np.float32,
) -> int:
    """Return the total bytes of all arrays that the patterns match, for `tokens` tokens."""
    names = select_hook_points(points, config.n_layer)
    size = sum(math.prod(hook_point_shape(name, config, tokens)) for name in names)
    return size * np.dtype(dtype).itemsize


def hook_point_shape(name: str, config: GPT2Config, tokens: int) -> tuple[int, ...]:
    """Return the shape of a hook point's array in a pass over `tokens` tokens without a cache."""
    size = {
        "T": tokens,
        "C": config.n_embd,
        "H": config.n_head,
        "D": config.n_embd // config.n_head,
        "F": config.n_inner,
        "V": config.vocab_size,
    }
    return tuple(size[letter] for letter in get_hook_point(name).shape.split())


def _unknown(pattern: str, n_layer: int) -> str:
    """Return the error message for a pattern that matches no hook point."""
    names = hook_point_names(n_layer)
    known = dict.fromkeys(alias for name in names for alias in all_names(name, n_layer))
    starred = dict.fromkeys(re.sub(r"^blocks\.\d+", "blocks.*", name) for name in known)
    hint = did_you_mean(pattern[:100], [*known, *starred])
    hint = hint or '; the documentation\'s page "Hook points" lists them'
    return f"unknown hook point {short_repr(pattern)}{hint}"
