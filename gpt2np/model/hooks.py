"""The points of the forward pass that a hook sees, and how they are named.

`HOOK_POINTS` is the list, in the order of the pass. A name may also be given as TransformerLens has it
(`blocks.3.hook_resid_post`), and with `*` for any part of it (`blocks.*.attn.pattern`).

Of TransformerLens's names those are missing that here are no step of their own: `hook_embed` and
`hook_pos_embed`, rows of `wte.weight` and `wpe.weight`, which `embed` adds up; `hook_attn_scores`,
before the softmax; and each layer norm's deviation, `hook_scale` of `ln1`, `ln2` and `ln_final`.
Arrays have no batch axis, and heads come first: (H, T, D) where TransformerLens has
(batch, T, H, D).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
from numpy.typing import DTypeLike

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.errors import InvalidArgumentError, short_repr


@dataclass(frozen=True)
class HookPoint:
    """A kind of array inside the forward pass.

    Attributes:
        name: as the hook is told it, with `{i}` for the block's number.
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


HOOK_POINTS = (
    HookPoint("embed", "T C", ("blocks.0.hook_resid_pre",), "token embedding + position embedding"),
    HookPoint(
        "blocks.{i}.ln_1", "T C", ("blocks.{i}.ln1.hook_normalized",), "layer norm of the resid"
    ),
    HookPoint("blocks.{i}.attn.q", "H T D", ("blocks.{i}.attn.hook_q",), "queries, not yet scaled"),
    HookPoint("blocks.{i}.attn.k", "H T D", ("blocks.{i}.attn.hook_k",), "keys"),
    HookPoint("blocks.{i}.attn.v", "H T D", ("blocks.{i}.attn.hook_v",), "values"),
    HookPoint(
        "blocks.{i}.attn.pattern",
        "H T T",
        ("blocks.{i}.attn.hook_pattern",),
        "who (row) looks at whom (column): softmax of the masked scores",
    ),
    HookPoint(
        "blocks.{i}.attn.z", "H T D", ("blocks.{i}.attn.hook_z",), "values mixed by the pattern"
    ),
    HookPoint("blocks.{i}.attn.out", "T C", ("blocks.{i}.hook_attn_out",), "what attention adds"),
    HookPoint(
        "blocks.{i}.resid_mid", "T C", ("blocks.{i}.hook_resid_mid",), "resid after attention"
    ),
    HookPoint(
        "blocks.{i}.ln_2", "T C", ("blocks.{i}.ln2.hook_normalized",), "layer norm of resid_mid"
    ),
    HookPoint(
        "blocks.{i}.mlp.pre", "T F", ("blocks.{i}.mlp.hook_pre",), "neurons before activation"
    ),
    HookPoint(
        "blocks.{i}.mlp.act", "T F", ("blocks.{i}.mlp.hook_post",), "neurons after activation"
    ),
    HookPoint("blocks.{i}.mlp.out", "T C", ("blocks.{i}.hook_mlp_out",), "what the MLP adds"),
    HookPoint(
        "blocks.{i}.resid",
        "T C",
        ("blocks.{i}.hook_resid_post", "blocks.{next}.hook_resid_pre"),
        "residual stream after the block",
    ),
    HookPoint("ln_f", "T C", ("ln_final.hook_normalized",), "final layer norm"),
    HookPoint("logits", "T V", (), "scores of the next token"),
)
"""Every point, in the order in which a pass comes by; those with `{i}` once for each block."""

_KINDS = {point.name: point for point in HOOK_POINTS}


def point_names(n_layer: int) -> list[str]:
    """The name of every point of a model with so many blocks, in the order of the pass."""
    return _names(range(n_layer))


def _names(blocks: Iterable[int]) -> list[str]:
    kinds = [point.name for point in HOOK_POINTS if "{i}" in point.name]
    inner = [name.format(i=i) for i in blocks for name in kinds]
    first, *last = (point.name for point in HOOK_POINTS if "{i}" not in point.name)
    return [first, *inner, *last]


def point_of(name: str) -> HookPoint:
    """The kind of the point with that name: blocks.3.attn.q → that of blocks.{i}.attn.q."""
    return _KINDS[re.sub(r"^blocks\.\d+\.", "blocks.{i}.", name)]


def _block_of(name: str) -> int | None:
    number = re.match(r"blocks\.([0-9]{1,9})\.", name)
    return int(number[1]) if number else None


def names_of(name: str, n_layer: int | None = None) -> list[str]:
    """A point's name, and after it the others that it goes by in a model with so many blocks.

    What comes out of the last block goes into no other one. Where it is not known which block is
    the last (None), none is.
    """
    i = _block_of(name) or 0
    is_last = i + 1 == n_layer
    aliases = [a for a in point_of(name).aliases if not (is_last and "{next}" in a)]
    return [name, *(alias.format(i=i, next=i + 1) for alias in aliases)]


def matches(name: str, pattern: str, n_layer: int | None = None) -> bool:
    """Whether a point goes by a name, which may have `*` for any part of it; see `names_of`."""
    expression = ".*".join(map(re.escape, re.split(r"\*+", pattern)))
    return any(re.fullmatch(expression, other) for other in names_of(name, n_layer))


def chosen_points(patterns: str | Sequence[str], n_layer: int) -> list[str]:
    """The points of a model with so many blocks that the patterns choose, in the pass's order.

    Raises:
        InvalidArgumentError: a pattern that no point matches; names the one that comes closest.
    """
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    names = point_names(n_layer)
    for pattern in patterns:
        if not any(matches(name, pattern, n_layer) for name in names):
            block = _block_of(pattern)
            if block is not None and block >= n_layer:
                raise InvalidArgumentError(
                    f"there is no point {short_repr(pattern)}: the model's blocks are 0 … {n_layer - 1}"
                )
            raise InvalidArgumentError(_unknown(pattern, names))
    return [name for name in names if any(matches(name, p, n_layer) for p in patterns)]


def possible_points(pattern: str) -> list[str]:
    """Points that a pattern chooses in a model of any number of blocks, at least one of each kind.

    Raises:
        InvalidArgumentError: no model has any; names the one that comes closest.
    """
    # Of 1*2 block 12 is one; and what goes into a block is of the one below.
    runs = re.findall("[0-9]+", pattern) + re.findall("[0-9]+", pattern.replace("*", ""))
    numbers = {0, *(int(run) for run in runs if len(run) < 10)}
    names = _names(sorted(numbers | {number - 1 for number in numbers if number}))
    found = [name for name in names if matches(name, pattern)]
    if not found:
        raise InvalidArgumentError(_unknown(pattern, names))
    return found


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


def _unknown(pattern: str, names: Sequence[str]) -> str:
    """What to say of a pattern that none of the names matches."""
    known = [other for name in names for other in names_of(name)]
    starred = dict.fromkeys(re.sub(r"^blocks\.\d+", "blocks.*", name) for name in known)
    close = get_close_matches(pattern, [*known, *starred], n=1)
    hint = f"did you mean {close[0]!r}?" if close else "gpt2np trace --list-points shows all"
    return f"there is no point {short_repr(pattern)}; {hint}"
