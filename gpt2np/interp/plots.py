"""Plots of attention patterns with matplotlib (extra `plots`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpt2np.errors import GPT2NPError, check_argument, install_hint, is_integer
from gpt2np.interp.trace import Trace, check_trace
from gpt2np.language_model import LanguageModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_attention(lm: LanguageModel, trace: Trace, layer: int) -> Figure:
    """Draw the attention patterns of a layer: a picture for each head, queries down, keys across.

    White is weight 0, and the darkest blue is weight 1, as the scale at the right shows. If the
    trace has only the last queries (`record_pass`), only these are drawn.
    `figure.savefig("heads.png")` writes the result; Jupyter shows it.

    Raises:
        GPT2NPError: matplotlib is not installed.
        InvalidArgumentError: `layer` does not exist, or the trace lacks the pattern.
    """
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        raise GPT2NPError(f"plots need matplotlib; {install_hint('plots')}") from error
    check_trace(trace)
    check_argument(is_integer(layer), "layer", layer, "the index of a block")
    [name] = trace.require(f"blocks.{layer}.attn.pattern")
    tokens = [text.replace("$", r"\$") for text in lm.tokenizer.token_texts(trace.ids)]
    size = max(2.5, 0.28 * len(tokens))
    labels = 0.1 * max(map(len, tokens))  # the longest, in inches
    n_heads, n_queries = trace[name].shape[:2]
    figsize = (n_heads * size + labels + 1.2, size + labels + 0.7)
    figure = pyplot.figure(figsize=figsize, layout="constrained")
    pyplot.close(figure)  # it is returned; a notebook would show it twice
    axes = figure.subplots(1, n_heads, squeeze=False, sharey=True)[0]
    for head, ax in enumerate(axes):
        image = ax.imshow(trace[name][head], cmap="Blues", vmin=0, vmax=1)
        ax.set_title(f"head {layer}.{head}")
        ax.set_xticks(range(len(tokens)), tokens, rotation=90)
        ax.set_yticks(range(n_queries), tokens[-n_queries:])
        ax.set_xlabel("key: attended token")
    axes[0].set_ylabel("query: token that attends")
    figure.colorbar(image, ax=list(axes), label="attention weight")
    return figure
