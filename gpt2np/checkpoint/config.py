"""A model's shape and switches, as `config.json` gives them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt2np.data.files import SMALL_JSON_BYTES, read_json_object
from gpt2np.errors import CheckpointError, short_repr

CONFIG_FILE = "config.json"
ACTIVATION_FUNCTIONS = ("gelu_new", "gelu_pytorch_tanh", "gelu", "relu", "silu", "swish", "tanh")
"""What `activation_function` in a config.json can name, by the names of `transformers`."""
OTHER_NAMES = {
    "max_position_embeddings": "n_positions",
    "block_size": "n_positions",  # nanoGPT's
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
}
"""Names that some checkpoints use → GPT-2's own."""

_TOO_LARGE = 1 << 31  # for any dimension; Python refuses to print what has thousands of digits


@dataclass(frozen=True)
class GPT2Config:
    """The architecture, with the names and defaults of `transformers`' GPT2Config.

    Attributes:
        vocab_size: V, rows of the token embedding.
        n_positions: the context length, rows of the position embedding.
        n_embd: C, width of the residual stream.
        n_layer: L, number of blocks.
        n_head: H, attention heads per block, each of D = C / H channels.
        n_inner: F, width of the MLP; 4 * n_embd if none is given.
        activation_function: of the MLP, a name in `ACTIVATION_FUNCTIONS`.
        layer_norm_epsilon: added to the variance in every layer norm.
        scale_attn_weights: divide attention scores by the square root of D.
        scale_attn_by_inverse_layer_idx: divide them by the block's number, too, counted from 1.
        tie_word_embeddings: the unembedding is the token embedding, unless the checkpoint holds
            another one.
        eos_token_ids: the ids that end a text, as far as the config names any.
    """

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int = 0
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    tie_word_embeddings: bool = True
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.n_inner:
            object.__setattr__(self, "n_inner", 4 * self.n_embd)

    @classmethod
    def from_file(cls, path: str | Path) -> GPT2Config:
        """Read a `config.json`. Raises CheckpointError for a file that is missing or damaged."""
        content = read_json_object(Path(path), CheckpointError, max_bytes=SMALL_JSON_BYTES)
        return cls.from_mapping(content, source=str(path))

    @classmethod
    def from_mapping(cls, content: Mapping[str, Any], source: str = "config") -> GPT2Config:
        """Take the known keys from a config.json's content; `source` names it in messages.

        Raises:
            CheckpointError: another architecture, a value of the wrong kind, or a switch that
                changes the result and is not supported.
        """
        content = _with_gpt2s_names(content, source)
        _refuse_unsupported(content, source)
        values = {
            name: content[name]
            for name in cls.__dataclass_fields__
            if content.get(name) is not None and name != "eos_token_ids"
        }
        for name, value in values.items():
            _check_kind(name, value, source)
        if "layer_norm_epsilon" in values:
            values["layer_norm_epsilon"] = float(values["layer_norm_epsilon"])
        config = cls(**values, eos_token_ids=token_ids(content.get("eos_token_id"), source))
        if config.n_embd % config.n_head:
            raise CheckpointError(
                f"{source}: n_embd ({config.n_embd}) must be a multiple of n_head ({config.n_head})"
            )
        return config

    def attention_scale(self, layer: int) -> float:
        """Factor of a block's attention scores: 1/√D, times 1/(layer + 1) if configured."""
        scale = 1.0
        if self.scale_attn_weights:
            scale /= math.sqrt(self.n_embd // self.n_head)
        if self.scale_attn_by_inverse_layer_idx:
            scale /= layer + 1
        return scale


def token_ids(value: object, source: str) -> tuple[int, ...]:
    """The ids in an `eos_token_id`, which may be one, a list, or null; else CheckpointError."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(number) is int for number in ids):
        raise CheckpointError(
            f"{source}: eos_token_id is {short_repr(value)}, expected an id or a list"
        )
    return tuple(ids)


def _with_gpt2s_names(content: Mapping[str, Any], source: str) -> dict[str, Any]:
    renamed = dict(content)
    for other, name in OTHER_NAMES.items():
        value = renamed.pop(other, None)
        if value is not None:
            _check_kind(name, value, source, other)
            if renamed.get(name) not in (None, value):
                raise CheckpointError(
                    f"{source}: {name} is {short_repr(renamed[name])} and {other}, its other name, "
                    f"{value}"
                )
            renamed[name] = value
    return renamed


def _refuse_unsupported(content: Mapping[str, Any], source: str) -> None:
    if content.get("model_type", "gpt2") != "gpt2":
        raise CheckpointError(
            f"{source}: model_type is {short_repr(content['model_type'])}; gpt2np runs 'gpt2' only"
        )
    # reorder_and_upcast_attn needs no switch: it changes how half precision is computed, and here
    # everything is float32 or float64.
    if content.get("is_causal", True) is not True:
        raise CheckpointError(f"{source}: is_causal is not true, which gpt2np does not support")
    for switch in ("add_cross_attention", "quantization_config"):
        if content.get(switch):
            raise CheckpointError(f"{source}: {switch} is set, which gpt2np does not support")


def _check_kind(name: str, value: Any, source: str, called: str = "") -> None:
    expected = type(getattr(GPT2Config, name))
    if expected is str:
        valid, words = value in ACTIVATION_FUNCTIONS, "one of " + ", ".join(ACTIVATION_FUNCTIONS)
    elif expected is int:
        valid = type(value) is int and 0 < value < _TOO_LARGE
        words = f"a whole number above 0 and below {_TOO_LARGE:,}"
    elif expected is float:
        # Written so that nan, which compares false with everything, is refused too.
        valid, words = type(value) in (int, float) and 0 <= value < 1e30, "a number from 0 to 1e30"
    else:
        valid, words = type(value) is bool, "true or false"
    if not valid:
        raise CheckpointError(
            f"{source}: {called or name} is {short_repr(value)}, expected {words}"
        )
