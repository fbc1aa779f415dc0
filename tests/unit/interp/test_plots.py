"""plot_attention draws the patterns of a trace."""

import io
import sys

import numpy as np
import pytest

import gpt2np
from gpt2np.interp import plot_attention


def test_the_images_are_the_patterns(lm):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    trace = gpt2np.trace(lm, "The king said $x", "blocks.*.attn.pattern")
    figure = plot_attention(lm, trace, layer=1)
    assert len(figure.axes) == lm.model.config.n_head + 1
    for head, ax in enumerate(figure.axes[:-1]):
        np.testing.assert_array_equal(
            ax.images[0].get_array(), trace["blocks.1.attn.pattern"][head]
        )
        assert ax.get_title() == f"head 1.{head}"
        assert len(ax.get_xticks()) == len(trace.ids)
    figure.savefig(io.BytesIO())
    assert not pyplot.get_fignums()  # a notebook shows the returned figure, and each open one


def test_plot_attention_names_its_axes_and_has_a_scale(lm):
    pytest.importorskip("matplotlib")
    trace = gpt2np.trace(lm, "The king", "blocks.1.attn.pattern")
    first, second, *_, scale = plot_attention(lm, trace, layer=1).axes
    assert first.get_ylabel() == "query: token that attends"
    assert first.get_xlabel() == second.get_xlabel() == "key: attended token"
    assert scale.get_ylabel() == "attention weight" and scale.get_ylim() == (0, 1)


def test_long_tokens_do_not_push_the_titles_out_of_the_figure(lm):
    agg = pytest.importorskip("matplotlib.backends.backend_agg")
    figure = plot_attention(
        lm, gpt2np.trace(lm, "The wolf ate the sheep because the wolf"), layer=1
    )
    canvas = agg.FigureCanvasAgg(figure)
    canvas.draw()
    for ax in figure.axes:
        assert ax.title.get_window_extent(canvas.get_renderer()).y1 <= figure.bbox.y1


@pytest.mark.parametrize("layer", [99, -1, "*"])
def test_invalid_layers(lm, layer):
    pytest.importorskip("matplotlib")
    trace = gpt2np.trace(lm, "The king", "blocks.*.attn.pattern")
    with pytest.raises(gpt2np.InvalidArgumentError):
        plot_attention(lm, trace, layer)


def test_without_matplotlib(lm, monkeypatch):
    trace = gpt2np.trace(lm, "The king", "blocks.0.attn.pattern")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(gpt2np.GPT2NPError, match=r"'\.\[plots\]'"):
        plot_attention(lm, trace, layer=0)
