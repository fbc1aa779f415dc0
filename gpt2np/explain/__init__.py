"""An HTML page that shows what a model does with a prompt, number by number.

    page = explain(gpt2np.load("bundled"), "The little fox")
    Path("page.html").write_text(page.html, encoding="utf-8")

page                   the page and its order of sections, with page.html, page.css and page.js
run                    one traced pass over the prompt
input, attention, block, output, audit
                       the sections; each computes its numbers and its markup
markup, figures        HTML helpers, numbers that can be checked, pictures and charts
"""

from gpt2np.explain.page import PROGRESS_STEPS, Page, explain

__all__ = ["PROGRESS_STEPS", "Page", "explain"]
