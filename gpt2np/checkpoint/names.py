"""Names and shapes of GPT-2's tensors, and the prefixes that checkpoints put before the names.

OpenAI and `transformers`' GPT2Model use names such as "h.0.ln_1.weight". GPT2LMHeadModel writes
"transformer.h.0.ln_1.weight". torch.compile prepends "_orig_mod."; wrappers prepend "model." or
"module.".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.errors import CheckpointError

WTE, LM_HEAD = "wte.weight", "lm_head.weight"

_PREFIXES = re.compile(r"(?:(?:_orig_mod|module|model|transformer)\.)*")
_CAUSAL_MASK = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # buffers in old checkpoints


def weight_shapes(config: GPT2Config) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight by name, in the order of the forward pass.

    Matrices are `[in, out]`, as in OpenAI's Conv1D: a layer computes `x @ weight`.
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
    }


def strip_prefixes(stored_names: Iterable[str]) -> dict[str, str]:
    """Map each tensor's name without prefixes to the stored name. Causal masks are left out.

    Raises CheckpointError if two stored names differ only in their prefix.
    """
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
