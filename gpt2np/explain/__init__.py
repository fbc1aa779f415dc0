"""HTML page that shows how a model processes a prompt, with the numbers of each step.

    page = explain(gpt2np.load("bundled"), "The little fox")
    Path("page.html").write_text(page.html, encoding="utf-8")

page      the page: the description of the pass, with more fields, in the front end of `gpt2np.view`
run       runs the forward pass over the prompt and keeps all activations
pieces    the prompt's pieces and their merges
details   the further fields of the description
measure   time, operations and float32 precision
"""

from gpt2np.explain.page import Page, explain

__all__ = ["Page", "explain"]
