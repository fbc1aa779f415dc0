"""Draw the pictures of the documentation from real runs of the bundled model.

python docs/pictures.py            writes docs/_static/*.svg (extra "plots")
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

import gpt2np
from gpt2np.interp import plot_attention

STATIC = Path(__file__).parent / "_static"


def attention_plot(lm: gpt2np.LanguageModel) -> None:
    """Draw the plot of the page Recipes."""
    trace = gpt2np.trace(lm, "The king said that the king", "blocks.1.attn.pattern")
    plot_attention(lm, trace, layer=1).savefig(
        STATIC / "attention_plot.svg", metadata={"Date": None}
    )


def main() -> None:
    """Draw all pictures; the same files on every run."""
    matplotlib.rcParams |= {"svg.hashsalt": "gpt2np", "savefig.facecolor": "white"}
    attention_plot(gpt2np.load("bundled"))


if __name__ == "__main__":
    main()
