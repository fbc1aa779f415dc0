"""Let autodoc read gpt2np's docstrings, which are plain text.

A paragraph that is indented after an empty line is an example or a table, so it becomes a literal
block. Google's sections (Args, Raises, Attributes) are left to napoleon.
"""

import re
from typing import Any

from docutils import nodes

SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes|Note|Example)s?:$")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _escape_bars(line: str) -> str:
    """Escape `|` outside of code; in reStructuredText, it marks a substitution."""
    parts = re.split(r"(`[^`]*`)", line)
    parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
    return "".join(parts)


def mark_literal_blocks(
    app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]
) -> None:
    """Put `::` before each indented paragraph outside of sections."""
    if what == "module":
        if any(lines[1:]):
            lines[:] = [*lines[:1], "", "::", "", *(f"    {line}" for line in lines[1:])]
        return
    result: list[str] = []
    in_section = in_literal = False
    for line in lines:
        if line.strip() and not _indent(line):
            in_section, in_literal = bool(SECTION.match(line)), False
        is_indented = line.strip() and _indent(line) >= 4
        if is_indented and not in_section and not in_literal and result and not result[-1].strip():
            result += ["::", ""]
            in_literal = True
        result.append(line if in_literal else _escape_bars(line))
    lines[:] = result


def shorten_types(
    app: Any, what: str, name: str, obj: object, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """Write the names of type aliases (autodoc_type_aliases) as in the source."""
    if signature is None:  # a property has no signature
        return None
    alias = re.compile(r"TypeAliasForwardRef\('(\w+)'\)")
    return alias.sub(r"\1", signature), alias.sub(r"\1", returns or "")


def replace_dashes(app: Any, doctree: nodes.document) -> None:
    """Replace the " -- " that Sphinx puts between a parameter and its description."""
    for text in list(doctree.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(": "))


def setup(app: Any) -> dict[str, bool]:
    """Register the extension; it runs before napoleon, whose priority is 500."""
    app.connect("autodoc-process-signature", shorten_types)
    app.connect("doctree-read", replace_dashes)
    app.connect("autodoc-process-docstring", mark_literal_blocks, priority=400)
    return {"parallel_read_safe": True}
