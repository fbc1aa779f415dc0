"""The points of the forward pass that a probe sees, and how they are named.

`POINTS` is the list, in the order of the pass. A name may also be given as TransformerLens has it
(`blocks.3.hook_resid_post`), and with `*` for any part of it (`blocks.*.attn.pattern`).

Two names of TransformerLens are missing, because here they are no step of their own: `hook_embed`
and `hook_pos_embed`, rows of `wte.weight` and `wpe.weight`, are added up in `embed`. Arrays have no
batch axis, and heads come first: (H, T, D) where TransformerLens has (batch, T, H, D).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import DTypeLike

from gpt2np.errors import InvalidArgumentError, shown
from gpt2np.model.config import GPT2Config


@dataclass(frozen=True)
class Point:
    """A kind of array inside the forward pass.

    Attributes:
        name: as the probe is told it, with `{i}` for the block's number.
        shape: letters: T tokens, C channels, H heads, D head size, F MLP width, V vocabulary.
        aliases: TransformerLens's names, with `{i}` and `{next}` for this block and the next.
        meaning: what it is, in a few words.
    """

    name: str
    shape: str
    aliases: tuple[str, ...]
    meaning: str

    @property
    def by_head(self) -> bool:
        """Whether the first axis is that of the heads, and the second that of the tokens."""
        return self.shape.startswith("H")


POINTS = (
    Point("embed", "T C", ("blocks.0.hook_resid_pre",), "token embedding + position embedding"),
    Point("blocks.{i}.ln_1", "T C", ("blocks.{i}.ln1.hook_normalized",), "layer norm of the resid"),
    Point("blocks.{i}.attn.q", "H T D", ("blocks.{i}.attn.hook_q",), "queries, not yet scaled"),
    Point("blocks.{i}.attn.k", "H T D", ("blocks.{i}.attn.hook_k",), "keys"),
    Point("blocks.{i}.attn.v", "H T D", ("blocks.{i}.attn.hook_v",), "values"),
    Point(
        "blocks.{i}.attn.pattern",
        "H T T",
        ("blocks.{i}.attn.hook_pattern",),
        "who (row) looks at whom (column): softmax of the masked scores",
    ),
    Point("blocks.{i}.attn.z", "H T D", ("blocks.{i}.attn.hook_z",), "values mixed by the pattern"),
    Point("blocks.{i}.attn.out", "T C", ("blocks.{i}.hook_attn_out",), "what attention adds"),
    Point("blocks.{i}.resid_mid", "T C", ("blocks.{i}.hook_resid_mid",), "resid after attention"),
    Point("blocks.{i}.ln_2", "T C", ("blocks.{i}.ln2.hook_normalized",), "layer norm of resid_mid"),
    Point("blocks.{i}.mlp.pre", "T F", ("blocks.{i}.mlp.hook_pre",), "neurons before activation"),
    Point("blocks.{i}.mlp.act", "T F", ("blocks.{i}.mlp.hook_post",), "neurons after activation"),
    Point("blocks.{i}.mlp.out", "T C", ("blocks.{i}.hook_mlp_out",), "what the MLP adds"),
    Point(
        "blocks.{i}.resid",
        "T C",
        ("blocks.{i}.hook_resid_post", "blocks.{next}.hook_resid_pre"),
        "residual stream after the block",
    ),
    Point("ln_f", "T C", ("ln_final.hook_normalized",), "final layer norm"),
    Point("logits", "T V", (), "scores of the next token"),
)
"""Every point, in the order in which a pass comes by; those with `{i}` once for each block."""

_KINDS = {point.name: point for point in POINTS}


def point_names(n_layer: int) -> list[str]:
    """The name of every point of a model with so many blocks, in the order of the pass."""
    blocks = [point.name for point in POINTS if "{i}" in point.name]
    inner = [name.format(i=i) for i in range(n_layer) for name in blocks]
    first, *last = (point.name for point in POINTS if "{i}" not in point.name)
    return [first, *inner, *last]


def point_of(name: str) -> Point:
    """The kind of the point with that name: blocks.3.attn.q → that of blocks.{i}.attn.q."""
    return _KINDS[re.sub(r"^blocks\.\d+\.", "blocks.{i}.", name)]


def names_of(name: str) -> list[str]:
    """A point's name, and after it the other names that it goes by."""
    number = re.match(r"blocks\.(\d+)\.", name)
    i = int(number[1]) if number else 0
    return [name, *(alias.format(i=i, next=i + 1) for alias in point_of(name).aliases)]


def matches(name: str, pattern: str) -> bool:
    """Whether a point goes by a name, which may have `*` for any part of it."""
    return any(fnmatchcase(other, pattern) for other in names_of(name))


def chosen_points(patterns: str | Sequence[str], n_layer: int) -> list[str]:
    """The points of a model with so many blocks that the patterns choose, in the pass's order.

    Raises:
        InvalidArgumentError: a pattern that no point matches; names the one that comes closest.
    """
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    names = point_names(n_layer)
    for pattern in patterns:
        if not any(matches(name, pattern) for name in names):
            raise InvalidArgumentError(_unknown(pattern, n_layer))
    return [name for name in names if any(matches(name, pattern) for pattern in patterns)]


def highest_block(patterns: Sequence[str]) -> int:
    """The highest number of a block that the patterns name; 0 if they name none."""
    found = (re.match(r"blocks\.(\d+)\.", pattern) for pattern in patterns)
    return max((int(number[1]) for number in found if number), default=0)


def points_nbytes(
    config: GPT2Config,
    tokens: int,
    points: str | Sequence[str] = "*",
    dtype: DTypeLike = np.float32,
) -> int:
    """Bytes that the arrays of the chosen points take for so many tokens."""
    names = chosen_points(points, config.n_layer)
    numbers = sum(math.prod(point_shape(name, config, tokens)) for name in names)
    return numbers * np.dtype(dtype).itemsize


def point_shape(name: str, config: GPT2Config, tokens: int) -> tuple[int, ...]:
    """The shape of a point's array for so many tokens, without a cache."""
    size = {
        "T": tokens,
        "C": config.n_embd,
        "H": config.n_head,
        "D": config.n_embd // config.n_head,
        "F": config.n_inner,
        "V": config.vocab_size,
    }
    return tuple(size[letter] for letter in point_of(name).shape.split())


def _unknown(pattern: str, n_layer: int) -> str:
    number = re.match(r"blocks\.(\d+)\.", pattern)
    if number and int(number[1]) >= n_layer:
        return f"there is no point {shown(pattern)}: the model's blocks are 0 … {n_layer - 1}"
    close = get_close_matches(pattern, _all_names(n_layer), n=1)
    hint = f"did you mean {close[0]!r}?" if close else "gpt2np trace --list-points shows all"
    return f"there is no point {shown(pattern)}; {hint}"


def _all_names(n_layer: int) -> list[str]:
    """All that points go by, also with * for the block's number."""
    names = [other for name in point_names(n_layer) for other in names_of(name)]
    return [*names, *dict.fromkeys(re.sub(r"^blocks\.\d+", "blocks.*", name) for name in names)]
