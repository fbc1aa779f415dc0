"""Who looks at whom: the attention patterns of all heads of all blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.explain.html import formula, panel, source
from gpt2np.explain.numbers import Numbers
from gpt2np.explain.picture import picture
from gpt2np.explain.run import Run
from gpt2np.runtime.query_blocks import attention_pattern, mixed_values

Array = NDArray[Any]


def seen_weights(patterns: Array) -> Array:
    """Patterns (…, N, N) without what the causal mask hides: rows one after another, (…, pairs)."""
    rows, columns = np.tril_indices(patterns.shape[-1])
    return patterns[..., rows, columns]


def patterns_panel(run: Run, numbers: Numbers) -> str:
    """The panel's markup."""
    config = run.config
    patterns = np.stack([run.arrays[f"blocks.{i}.attn.pattern"] for i in range(config.n_layer)])
    numbers.add("patterns", seen_weights(patterns), carry=True)
    says = (
        f"In each of these {config.n_layer} × {config.n_head} pictures a row is a token that "
        "looks, a column one that is looked at, and the stronger the blue, the greater the weight; "
        "the rows add up to 1, and what is right of the diagonal is hidden. Look for diagonals "
        "(heads that look one token back), first columns (heads with nothing to do) and single "
        "bright spots."
    )
    rows = "".join(_row(run, layer, patterns[layer]) for layer in range(config.n_layer))
    body = [
        formula("pattern = softmax(scale · q kᵀ, causal)      z = pattern · v"),
        source(attention_pattern, mixed_values),
        '<p class="hint needs-script">Click a head to open it; the arrow keys go from head to '
        "head.</p>",
        f'<div class="wide" role="group" aria-label="Attention patterns, a row for each block">'
        f'<div class="heads" style="--heads: {config.n_head}">{rows}</div></div>',
        '<div id="opened-head" class="opened needs-script"></div>',
    ]
    return panel("patterns", "The patterns of all heads", says, "\n".join(body), level=3)


def _row(run: Run, layer: int, patterns: Array) -> str:
    cells = [f'<span class="layer">{layer}</span>']
    for head, pattern in enumerate(patterns):
        shown = picture(pattern, 1.0, f"block {layer}, head {head}")
        focus = (layer, head) == (run.focus.layer, run.focus.head)
        cells.append(
            f'<button type="button" class="head" data-layer="{layer}" data-head="{head}" '
            f'tabindex="{0 if focus else -1}" aria-pressed="false">{shown}</button>'
        )
    return "".join(cells)
