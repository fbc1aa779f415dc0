"""Hook points: the arrays of the forward pass that a hook can read and edit.

`HOOK_POINTS` lists the hook points in the order of the pass. A pattern is the name of a hook point,
in which `*` stands for any characters and `[01]` for 0 or 1, as in `fnmatch`
(`blocks.*.attn.pattern`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.errors import InvalidArgumentError, check_argument, did_you_mean, short_repr


@dataclass(frozen=True)
class HookPoint:
    """A kind of array that hooks can read and edit inside the forward pass.

    Attributes:
        name: the name passed to the hook, with `{i}` for the block's number.
        shape: a letter per axis: T tokens, C channels, H heads, D head size, F MLP, V vocabulary.
        meaning: a short description.
    """

    name: str
    shape: str
    meaning: str

    @property
    def by_head(self) -> bool:
        """Whether the array's first axis is the head axis."""
        return self.shape.startswith("H")


HOOK_POINTS = (
    HookPoint("embed", "T C", "token embedding + position embedding"),
    HookPoint("blocks.{i}.ln_1", "T C", "layer norm of the resid"),
    HookPoint("blocks.{i}.attn.q", "H T D", "queries before scaling"),
    HookPoint("blocks.{i}.attn.k", "H T D", "keys"),
    HookPoint("blocks.{i}.attn.v", "H T D", "values"),
    HookPoint("blocks.{i}.attn.pattern", "H T T", "attention weights: queries by keys"),
    HookPoint("blocks.{i}.attn.z", "H T D", "values weighted by the pattern"),
    HookPoint("blocks.{i}.attn.out", "T C", "attention output"),
    HookPoint("blocks.{i}.resid_mid", "T C", "resid after attention"),
    HookPoint("blocks.{i}.ln_2", "T C", "layer norm of resid_mid"),
    HookPoint("blocks.{i}.mlp.pre", "T F", "neurons before activation"),
    HookPoint("blocks.{i}.mlp.act", "T F", "neurons after activation"),
    HookPoint("blocks.{i}.mlp.out", "T C", "MLP output"),
    HookPoint("blocks.{i}.resid", "T C", "residual stream after the block"),
    HookPoint("ln_f", "T C", "final layer norm"),
    HookPoint("logits", "T V", "logits of the next token"),
)
"""All hook points in the order of the pass. A name with `{i}` stands for one array per block."""

_BY_NAME = {point.name: point for point in HOOK_POINTS}


def hook_point_names(n_layer: int) -> list[str]:
    """Return all hook point names of a model with `n_layer` blocks, in the order of the pass."""
    templates = [point.name for point in HOOK_POINTS if "{i}" in point.name]
    inner = [template.format(i=i) for i in range(n_layer) for template in templates]
    return ["embed", *inner, "ln_f", "logits"]


def get_hook_point(name: str) -> HookPoint:
    """Return the hook point with a given name, such as "blocks.3.attn.q"."""
    point = _BY_NAME.get(re.sub(r"^blocks\.\d+\.", "blocks.{i}.", name))
    if point is None:
        raise InvalidArgumentError(_unknown(name, hook_point_names(1)))
    return point


@lru_cache(maxsize=1 << 14)
def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Tell whether any of the patterns matches the name of a hook point."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def select_hook_points(patterns: str | Sequence[str], n_layer: int) -> list[str]:
    """Return the hook points that match any of the patterns, in the order of the pass."""
    patterns = [patterns] if isinstance(patterns, str) else patterns
    is_list = isinstance(patterns, Sequence) and all(isinstance(name, str) for name in patterns)
    check_argument(is_list, "points", patterns, "the name of a hook point or a list of names")
    names = hook_point_names(n_layer)
    for pattern in patterns:
        if not any(matches(name, (pattern,)) for name in names):
            raise InvalidArgumentError(_unknown(pattern, names))
    return [name for name in names if matches(name, tuple(patterns))]


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


def _unknown(pattern: str, names: Sequence[str]) -> str:
    """Return the error message for a pattern that matches none of the names."""
    starred = dict.fromkeys(re.sub(r"^blocks\.\d+", "blocks.*", name) for name in names)
    hint = did_you_mean(pattern[:100], [*names, *starred])
    hint = hint or '; the documentation\'s page "Hook points" lists them'
    return f"unknown hook point {short_repr(pattern)}{hint}"
