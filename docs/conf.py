"""Sphinx configuration: `sphinx-build -W docs build/docs` builds the site."""

import sys
from pathlib import Path

import gpt2np

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "gpt2np"
author = "The gpt2np developers"
copyright = "the gpt2np developers, MIT license"
version = release = gpt2np.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "repository_pages",
    "mathml",
    "plain_docstrings",
    "generated_pages",
]
exclude_patterns = ["_ext"]

# Text: Markdown. Notebooks are shown with their stored outputs.
nb_execution_mode = "off"
nb_ipywidgets_js: dict[str, str] = {}  # nothing from other servers
myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3
smartquotes = False  # they change -- in options

# API: signatures and docstrings, in the order of the source.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_type_aliases = {
    name: name
    for name in (
        *("Array", "BoolArray", "IntArray", "ArrayLike", "DTypeLike", "Hook", "Prompt", "Options"),
        *("GenerateArguments", "Indices", "LogitsProcessor", "StoppingCriterion", "FinishReason"),
    )
}
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
default_role = "code"
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

html_math_renderer = "mathml"
html_theme = "furo"
html_title = f"gpt2np {release}"
html_favicon = "_static/logo.svg"  # a causal attention pattern
html_logo = "_static/logo.svg"
myst_html_meta = {
    "description": "gpt2np runs GPT-2 in NumPy on a CPU, and shows what happens inside."
}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_search_summary = False  # site.js: browsers forbid fetch from disk
html_js_files = ["site.js"]
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "default"  # "friendly" has pale comments, numbers and outputs
pygments_dark_style = "monokai"
