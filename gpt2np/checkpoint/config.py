"""A model's architecture, which `config.json` describes, and the names and shapes of its tensors.

OpenAI and `transformers`' GPT2Model use names such as "h.0.ln_1.weight". GPT2LMHeadModel writes
"transformer.h.0.ln_1.weight". torch.compile prepends "_orig_mod."; wrappers prepend "model." or
"module.".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt2np.data.files import read_json_object
from gpt2np.errors import SEE_MISSING_FEATURES, CheckpointError, errors_at, short_repr
from gpt2np.limits import limits

CONFIG_FILE = "config.json"
ACTIVATION_FUNCTIONS = ("gelu_new", "gelu_pytorch_tanh", "gelu", "relu", "silu", "swish", "tanh")
"""Supported values of `activation_function` in config.json, with `transformers`' names."""
ALIASES = {
    "max_position_embeddings": "n_positions",
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
}
"""Maps names in the configs of other models to GPT-2's names, which they precede."""

WTE, LM_HEAD = "wte.weight", "lm_head.weight"

_PREFIXES = re.compile(r"(?:(?:_orig_mod|module|model|transformer)\.)*")
_CAUSAL_MASK = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # buffers in old checkpoints

# reorder_and_upcast_attn is missing here: it affects only half precision.
_SUPPORTED: dict[str, list[Any]] = {
    "model_type": ["gpt2"],
    "is_causal": [True],
    "add_cross_attention": [False, None],
    "quantization_config": [None, False, {}],
}
_MAX_DIMENSION = (1 << 31) - 1  # an error message can't print an integer of over 4,300 digits
_VALUES: dict[type, tuple[Callable[[Any], bool], str]] = {
    str: (lambda x: x in ACTIVATION_FUNCTIONS, f"one of {', '.join(ACTIVATION_FUNCTIONS)}"),
    int: (
        lambda x: type(x) is int and 0 < x <= _MAX_DIMENSION,
        f"an integer from 1 to {_MAX_DIMENSION:,}",
    ),
    float: (lambda x: type(x) in (int, float) and 0 <= x < 1e30, "a number from 0 to 1e30"),
    bool: (lambda x: type(x) is bool, "true or false"),
}
"""Whether a value of a config.json is valid, by the type of its default, and the valid values."""


@dataclass(frozen=True)
class GPT2Config:
    """GPT-2's hyperparameters, with the names and defaults of `transformers`' GPT2Config.

    Immutable, so threads can share it.

    Attributes:
        vocab_size: V, number of rows of the token embedding.
        n_positions: context length, number of rows of the position embedding.
        n_embd: C, width of the residual stream.
        n_layer: L, number of blocks.
        n_head: H, number of attention heads per block, each of D = C / H channels.
        n_inner: F, width of the MLP; 0 means 4 * n_embd.
        activation_function: activation of the MLP, one of `ACTIVATION_FUNCTIONS`.
        layer_norm_epsilon: constant added to the variance in every layer norm.
        scale_attn_weights: divide attention scores by the square root of D.
        scale_attn_by_inverse_layer_idx: divide attention scores by the block's index + 1, too.
        tie_word_embeddings: use the token embedding as the unembedding, unless the checkpoint
            contains a different unembedding.
        eos_token_ids: ids of the end-of-text tokens; empty if the config has none.
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
        """Read a `config.json`.

        Raises CheckpointError if the file is missing or damaged, or `from_mapping` rejects it.
        """
        content = read_json_object(Path(path), CheckpointError, max_bytes=limits().max_config_bytes)
        with errors_at(f"{path}: "):
            return cls.from_mapping(content)

    @classmethod
    def from_mapping(cls, content: Mapping[str, Any]) -> GPT2Config:
        """Build a config from the content of a config.json; unknown keys are ignored.

        Raises CheckpointError if the architecture is not GPT-2, a value is invalid, or the config
        sets an unsupported option that changes the logits.
        """
        given = {ALIASES[alias]: alias for alias in ALIASES if content.get(alias) is not None}
        content = {**content, **{name: content[alias] for name, alias in given.items()}}
        for name, supported in _SUPPORTED.items():
            value = content.get(name, supported[0])
            if value not in supported:
                raise CheckpointError(
                    f"{name} is {short_repr(value)}; gpt2np supports only "
                    f"{json.dumps(supported[0])}; {SEE_MISSING_FEATURES}"
                )
        values = {
            name: content[name]
            for name in cls.__dataclass_fields__
            if content.get(name) is not None and name != "eos_token_ids"
        }
        for name, value in values.items():
            is_valid, expected = _VALUES[type(getattr(cls, name))]
            if not is_valid(value):
                shown = given.get(name, name)
                raise CheckpointError(f"{shown} is {short_repr(value)}, expected {expected}")
        if "layer_norm_epsilon" in values:
            values["layer_norm_epsilon"] = float(values["layer_norm_epsilon"])
        eos_token_ids = parse_eos_token_ids(content.get("eos_token_id"))
        config = cls(**values, eos_token_ids=eos_token_ids)
        if config.n_embd % config.n_head:
            raise CheckpointError(
                f"n_embd ({config.n_embd}) must be a multiple of n_head ({config.n_head})"
            )
        return config

    def attention_scale(self, layer: int) -> float:
        """Return the factor by which a block's attention scores are multiplied.

        The factor is 1/√D, or 1 without `scale_attn_weights`. It is divided by layer + 1 if
        `scale_attn_by_inverse_layer_idx` is set.
        """
        scale = 1 / math.sqrt(self.n_embd // self.n_head) if self.scale_attn_weights else 1.0
        return scale / (layer + 1) if self.scale_attn_by_inverse_layer_idx else scale


def parse_eos_token_ids(value: object) -> tuple[int, ...]:
    """Return the token ids in the value of `eos_token_id`: an id, a list of ids, or None."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token_id) is int for token_id in ids):
        raise CheckpointError(
            f"eos_token_id is {short_repr(value)}, expected a token id or a list of them"
        )
    return tuple(ids)


def weight_shapes(config: GPT2Config, *, head: bool = False) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight by name, in the order of the forward pass.

    Matrices are `[in, out]`, as in OpenAI's Conv1D: a layer computes `x @ weight`. With `head`, the
    unembedding is a weight of its own.
    """
    c, f = config.n_embd, config.n_inner
    block = {
        "ln_1.weight": (c,),
        "ln_1.bias": (c,),
        "attn.c_attn.weight": (c, 3 * c),
        "attn.c_attn.bias": (3 * c,),
        "attn.c_proj.weight": (c, c),
        "attn.c_proj.bias": (c,),
        "ln_2.weight": (c,),
        "ln_2.bias": (c,),
        "mlp.c_fc.weight": (c, f),
        "mlp.c_fc.bias": (f,),
        "mlp.c_proj.weight": (f, c),
        "mlp.c_proj.bias": (c,),
    }
    return {
        WTE: (config.vocab_size, c),
        "wpe.weight": (config.n_positions, c),
        **{
            f"h.{layer}.{name}": shape
            for layer in range(config.n_layer)
            for name, shape in block.items()
        },
        "ln_f.weight": (c,),
        "ln_f.bias": (c,),
        **({LM_HEAD: (config.vocab_size, c)} if head else {}),
    }


def strip_prefixes(stored_names: Iterable[str]) -> dict[str, str]:
    """Map each tensor's name without prefixes to the stored name. Causal masks are left out."""
    names: dict[str, str] = {}
    for stored_name in stored_names:
        name = _PREFIXES.sub("", stored_name, count=1)
        if name in names:
            raise CheckpointError(
                f"the weights contain {name} twice, as {names[name]} and {stored_name}; remove one"
            )
        if not _CAUSAL_MASK.fullmatch(name):
            names[name] = stored_name
    return names
