"""Plots of attention patterns with matplotlib (extra `plots`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpt2np.errors import GPT2NPError, check_argument, install_hint, is_integer
from gpt2np.interp.trace import Trace, check_trace
from gpt2np.language_model import LanguageModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_attention(
    lm: LanguageModel, trace: Trace, layer: int, heads: int | Sequence[int] | None = None
) -> Figure:
    """Draw the attention patterns of a layer: a picture for each head, queries down, keys across.

    White is weight 0, and the darkest blue is weight 1, as the scale at the right shows. `heads`
    defaults to all. If the trace has only the last queries (`record_pass`), only these are drawn.
    `figure.savefig("heads.png")` writes the result; Jupyter shows it.

    Raises:
        GPT2NPError: matplotlib is not installed.
        InvalidArgumentError: `layer` or `heads` does not exist, or the trace lacks the pattern.
    """
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        raise GPT2NPError(f"plots need matplotlib; {install_hint('plots')}") from error
    check_trace(trace)
    n_head = trace.config.n_head
    drawn: Sequence[int] = range(n_head)
    if heads is not None:
        drawn = [heads] if isinstance(heads, (int, np.integer)) else heads
    n_layer = trace.config.n_layer
    is_layer = is_integer(layer) and 0 <= layer < n_layer
    check_argument(is_layer, "layer", layer, f"a number from 0 to {n_layer - 1}")
    (name,) = trace.require(f"blocks.{layer}.attn.pattern")
    is_valid = all(is_integer(head) and 0 <= head < n_head for head in drawn) and len(drawn) > 0
    check_argument(is_valid, "heads", heads, f"a number from 0 to {n_head - 1}, or a list of them")
    tokens = [text.replace("$", r"\$") for text in lm.tokenizer.token_texts(trace.ids)]
    ticks = range(len(tokens))
    queries = tokens[-trace[name].shape[1] :]
    size = max(2.5, 0.28 * len(tokens))
    labels = 0.1 * max(map(len, tokens))  # the longest, in inches
    figsize = (len(drawn) * size + labels + 1.2, size + labels + 0.7)
    figure = pyplot.figure(figsize=figsize, layout="constrained")
    pyplot.close(figure)  # it is returned; a notebook would show it twice
    axes = figure.subplots(1, len(drawn), squeeze=False, sharey=True)[0]
    for ax, head in zip(axes, drawn, strict=True):
        image = ax.imshow(trace[name][head], cmap="Blues", vmin=0, vmax=1)
        ax.set_title(f"head {layer}.{head}")
        ax.set_xticks(ticks, tokens, rotation=90)
        ax.set_yticks(range(len(queries)), queries)
        ax.set_xlabel("key: attended token")
    axes[0].set_ylabel("query: token that attends")
    figure.colorbar(image, ax=list(axes), label="attention weight")
    return figure
