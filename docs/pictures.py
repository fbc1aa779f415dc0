"""Draw the pictures of the documentation from real runs of the bundled model.

python docs/pictures.py            writes docs/_static/*.svg (extra "plots")
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

import gpt2np
from gpt2np.generation import apply_temperature, top_k_filter, top_p_filter
from gpt2np.interp import lens_table, plot_attention
from gpt2np.model.ops import softmax

DOCS = Path(__file__).parent
WALKTHROUGH = DOCS.parent / "examples" / "walkthrough"
sys.path.insert(0, str(WALKTHROUGH))
KEPT, CUT = "#0072B2", "#CCCCCC"


def attention_plot(lm: gpt2np.LanguageModel) -> Figure:
    """Draw the plot of the page Recipes."""
    trace = gpt2np.trace(lm, "The king said that the king", "blocks.1.attn.pattern")
    return plot_attention(lm, trace, layer=1)


def sampling(lm: gpt2np.LanguageModel) -> Figure:
    """Draw what temperature, top-k and top-p do to the probabilities after one prompt."""
    logits = lm.model.forward([lm.tokenizer.encode("Once upon a time there was a")])[-1]
    order = np.argsort(-logits)[:12]
    names = [lm.tokenizer.decode([token]).strip() for token in order]
    changes = {
        "temperature 1": logits,
        "temperature 0.5": apply_temperature(logits, 0.5),
        "temperature 1.5": apply_temperature(logits, 1.5),
        "top-k 5": top_k_filter(logits, 5),
        "top-p 0.3": top_p_filter(logits, 0.3),
        "temperature 0.5, top-k 5": top_k_filter(apply_temperature(logits, 0.5), 5),
    }
    figure, axes = plt.subplots(2, 3, figsize=(9, 5.4), sharex=True, sharey=True)
    for ax, (title, changed) in zip(axes.flat, changes.items(), strict=True):
        percent = 100 * softmax(changed.astype(np.float64))[order]
        ax.barh(names, percent, color=KEPT)
        for row in np.flatnonzero(percent == 0):
            ax.text(0.5, row, "cut off", va="center", color="gray", fontsize=8)
        ax.set(title=title, ylim=(11.6, -0.6))
    figure.supxlabel("probability in %", fontsize=10)
    return figure


def surprisal(lm: gpt2np.LanguageModel) -> Figure:
    """Draw the surprisal of each word of a sentence that leads up the garden path."""
    from pictures import surprise_bars

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharex=True)
    for ax, comma in zip(axes, ["", ","], strict=True):
        sentence = f"While the king hunted{comma} the deer ran into the wood."
        surprise_bars(ax, lm.score(sentence).by_word(), highlight="ran")
        ax.set(xlabel="surprisal in bits")
    return figure


def lens(lm: gpt2np.LanguageModel) -> Figure:
    """Draw the logit lens: the likeliest next token after each block, and its probability."""
    trace = gpt2np.trace(lm, "Once upon a time there was a little")
    table = lens_table(lm, trace)
    tokens = lm.tokenizer.token_texts(trace.ids)
    figure, ax = plt.subplots(figsize=(9, 3.4))
    image = ax.imshow(table.probabilities[..., 0], cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for (row, column), token in np.ndenumerate(table.ids[..., 0]):
        color = "white" if table.probabilities[row, column, 0] > 0.6 else "black"
        text = table.texts[int(token)]
        text = text if text.isprintable() else repr(text)[1:-1]
        ax.text(column, row, text, ha="center", va="center", fontsize=9, color=color)
    ax.set_xticks(range(len(tokens)), tokens)
    ax.set_yticks(range(len(table.points)), ["embed", *map("block {}".format, range(6))])
    ax.set(xlabel="token", ylabel="guess after")
    figure.colorbar(image, label="probability")
    return figure


def merges(lm: gpt2np.LanguageModel) -> Figure:
    """Draw the merges of a word."""
    from pictures import merge_rows

    figure, ax = plt.subplots(figsize=(6.5, 2.8))
    merge_rows(ax, lm.tokenizer.trace_merges("little")[0].steps)
    return figure


def main() -> None:
    """Draw all pictures; the same files on every run."""
    plt.style.use(WALKTHROUGH / "pictures.mplstyle")
    matplotlib.rcParams |= {
        "svg.hashsalt": "gpt2np",
        "svg.fonttype": "none",
        "savefig.facecolor": "white",
    }
    lm = gpt2np.load("bundled")
    for draw in (attention_plot, sampling, surprisal, lens, merges):
        path = DOCS / "_static" / f"{draw.__name__}.svg"
        draw(lm).savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
