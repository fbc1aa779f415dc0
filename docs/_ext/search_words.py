"""Words that people type into the search → the page that answers them.

The words of docs/reference/words.md become index entries of the linked sections, which the search
ranks before pages that merely contain a word.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import normpath
from typing import Any

from docutils import nodes
from repository_pages import COPIES
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

WORDS = Path(__file__).parents[1] / "reference" / "words.md"
_ROW = re.compile(r"^\| (.+?) \| \[.*?\]\(([^)#]+)\.md(?:#([^)]+))?\) \|$", re.MULTILINE)


def _docname(path: str) -> str:
    """Return the page of the site for a file of the repository, without its suffix."""
    return COPIES.get(path, path.removeprefix("docs/")).removesuffix(".md")


def targets() -> dict[str, tuple[str, str]]:
    """Return the page and the anchor of each word; the anchor may be empty."""
    return {
        word.strip(): (_docname(normpath(f"docs/reference/{page}.md")), anchor)
        for words, page, anchor in _ROW.findall(WORDS.read_text(encoding="utf-8"))
        for word in words.split(",")
    }


class AddIndexEntries(SphinxTransform):
    """Insert the index entries of a page into the sections that they lead to."""

    default_priority = 800  # before Sphinx collects the entries (850)

    def apply(self, **kwargs: Any) -> None:
        """Insert the entries of the page that is read."""
        sections = list(self.document.findall(nodes.section))
        for word, (page, anchor) in targets().items():
            if page != self.env.docname:
                continue
            section = next(
                (s for s in sections if not anchor or anchor in (s.get("slug"), *s["ids"])), None
            )
            if section is None:
                raise ValueError(f"{WORDS.name}: {page} has no section {anchor}")
            entry = ("single", word, section["ids"][0], "main", None)
            section.insert(1, addnodes.index(entries=[entry]))


def setup(app: Any) -> dict[str, bool]:
    """Register the extension."""
    app.add_transform(AddIndexEntries)
    return {"parallel_read_safe": True}
