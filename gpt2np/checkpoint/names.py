"""The names under which checkpoints store GPT-2's weights → the names that they have here.

`transformers`' GPT2LMHeadModel writes "transformer.h.0.ln_1.weight", its GPT2Model and OpenAI
"h.0.ln_1.weight", torch.compile puts "_orig_mod." before it, wrappers "model." or "module.".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpt2np.errors import CheckpointError

_PREFIXES = re.compile(r"(?:(?:_orig_mod|module|model|transformer)\.)*")
_CAUSAL_MASK = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # buffers that old checkpoints carry


def weight_names(stored: Iterable[str]) -> dict[str, str]:
    """GPT-2's name → the stored name, of everything stored but the causal masks.

    Raises:
        CheckpointError: two stored names are one of GPT-2's.
    """
    names: dict[str, str] = {}
    for name in stored:
        plain = _PREFIXES.sub("", name, count=1)
        if plain in names:
            raise CheckpointError(f"the weights hold {plain} twice, as {names[plain]} and {name}")
        if not _CAUSAL_MASK.fullmatch(plain):
            names[plain] = name
    return names
