"""HTML page that shows how a model processes a prompt, with the numbers of each step.

    page = explain(gpt2np.load("bundled"), "The little fox")
    Path("page.html").write_text(page.html, encoding="utf-8")

page                   the page and its order of sections, with page.html, page.css and page.js
run                    one traced pass over the prompt
input, attention, block, output, audit
                       the sections; each computes its numbers and its markup
markup                 HTML helpers, and displayed numbers that name their array and index
figures                arrays as PNG images, line charts as SVG
"""

from gpt2np.explain.page import PROGRESS_STEPS, Page, explain

__all__ = ["PROGRESS_STEPS", "Page", "explain"]
