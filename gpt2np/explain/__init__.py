"""HTML page that shows how a model processes a prompt, with the numbers of each step.

    page = explain(gpt2np.load("bundled"), "The little fox")
    Path("page.html").write_text(page.html, encoding="utf-8")

page      assembles the page from the sections, page.html, colors.css,
          page.css and page.js
run       runs the forward pass over the prompt and keeps all activations
input, attention, block, output, audit
          compute the numbers of the sections and format them as HTML
markup    HTML helpers
figures   arrays as PNG images, line charts as SVG
"""

from gpt2np.explain.page import Page, explain

__all__ = ["Page", "explain"]
