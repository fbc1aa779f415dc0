"""A page that shows what a model does with a prompt.

    page = explain(gpt2np.load("bundled"), "The little fox")
    Path("page.html").write_text(page.html, encoding="utf-8")

run            one forward pass with everything kept
*_panel        the panels, in the order of the data's way; each computes its numbers and its markup
numbers        the numbers' names, so that every one can be checked against the library
html, picture, chart   markup; page.html, page.css and page.js are put into the one file
"""

from gpt2np.explain.page import PARTS, Page, explain

__all__ = ["PARTS", "Page", "explain"]
