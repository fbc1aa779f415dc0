"""Pages made from files outside of docs/, and links from pages to files of the repository.

Pages link to files as on a code host, with relative paths. On the site, a link to a file that is a
page becomes a link to the page. For each other linked file, a page with the file's text is made.
All pages made here are ignored by git.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent

COPIES = {
    "CHANGELOG.md": "reference/changelog.md",
    "SECURITY.md": "reference/security.md",
    "CONTRIBUTING.md": "contributing.md",
    "weights/README.md": "reference/bundled_model.md",
    "benchmarks/NOTES.md": "internals/notes.md",
    "examples/walkthrough/README.md": "tutorial/walkthrough/index.md",
} | {
    path.relative_to(ROOT).as_posix(): f"tutorial/walkthrough/{path.name}"
    for path in sorted(ROOT.glob("examples/walkthrough/[0-9]_*.ipynb"))
}
"""Files of the repository → pages of the site."""

PROMPT = "Once upon a time there was a little fox"
EXPLAIN_PAGE = DOCS / "_static" / "explain.html"

_LINK = re.compile(r"(?<=\]\()([^)\s#:\"\\]+)(#[^)\s\"\\]*)?(?=\))")
_ORIGINALS = {page: original for original, page in COPIES.items()}


def _original(page: str) -> str:
    """Return the repository path of a page, which is given relative to docs/."""
    return _ORIGINALS.get(page, f"docs/{page}")


def _page(path: str) -> str | None:
    """Return the page or picture of a repository file, relative to docs/; None if it is neither."""
    if path in COPIES:
        return COPIES[path]
    is_in_docs = path.startswith("docs/") and path.endswith((".md", ".svg"))
    return path.removeprefix("docs/") if is_in_docs else None


def _source_page(path: str) -> str:
    return f"source/{path or 'repository'}.md"


def _target(page: str, link: str) -> str | None:
    """Return the repository path that a link on a page leads to; None if no such file exists."""
    path = normpath(join(dirname(_original(page)), link))
    exists = not path.startswith("..") and (ROOT / path).exists()
    return path if exists else None


def _is_in_docs(page: str, path: str) -> bool:
    """Tell whether both ends of a link from a page to a repository path are in docs/."""
    return page not in _ORIGINALS and path.startswith("docs/")


def rewrite_links(page: str, text: str) -> str:
    """Replace links to files of the repository by links to pages of the site."""

    def replacement(match: re.Match[str]) -> str:
        path = _target(page, match[1])
        if path is None or _is_in_docs(page, path):
            return match[0]
        destination = _page(path) or _source_page(path)
        return relpath(destination, dirname(page) or ".") + (match[2] or "")

    return _LINK.sub(replacement, text)


def _linked_files(page: str, text: str) -> Iterator[str]:
    for match in _LINK.finditer(text):
        path = _target(page, match[1])
        if path is not None and _page(path) is None and not _is_in_docs(page, path):
            yield path


def _write(path: Path, text: str) -> None:
    """Write a page unless it is up to date, so that Sphinx reads only what has changed."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _source_text(path: str) -> str:
    head = f"---\norphan: true\nnosearch: true\n---\n\n# {path}\n\n"
    file = ROOT / path
    if file.is_dir():
        shown = (p for p in sorted(file.iterdir()) if p.name[0] not in "._")
        names = [p.name + "/" * p.is_dir() for p in shown]
        return head + "".join(f"- `{name}`\n" for name in names)
    language = {".py": "python", ".md": "markdown", ".toml": "toml"}.get(file.suffix, "text")
    return f"{head}``````{language}\n{file.read_text(encoding='utf-8')}``````\n"


def _walkthrough_toctree() -> str:
    names = [Path(page).stem for page in COPIES.values() if page.endswith(".ipynb")]
    return "\n```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```\n"


def make_pages(app: Any) -> None:
    """Copy the pages from outside of docs/, and make a page for each other linked file."""
    for original, page in COPIES.items():
        text = (ROOT / original).read_text(encoding="utf-8")
        is_walkthrough = page == "tutorial/walkthrough/index.md"
        _write(DOCS / page, text + _walkthrough_toctree() * is_walkthrough)
    linked: set[str] = set()
    for path in [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]:
        page = path.relative_to(DOCS).as_posix()
        if not page.startswith(("source/", "_")):
            linked |= set(_linked_files(page, path.read_text(encoding="utf-8")))
    made = {DOCS / _source_page(path): _source_text(path) for path in linked}
    for path in DOCS.glob("source/**/*.md"):
        if path not in made:
            path.unlink()
    for path, text in made.items():
        _write(path, text)
    if not EXPLAIN_PAGE.exists():
        import gpt2np
        from gpt2np.view.explain import explain

        _write(EXPLAIN_PAGE, explain(gpt2np.load("bundled"), PROMPT).html)


def _on_source_read(app: Any, docname: str, source: list[str]) -> None:
    page = Path(app.env.doc2path(docname)).relative_to(DOCS).as_posix()
    if not page.startswith("source/"):
        source[0] = rewrite_links(page, source[0])


def setup(app: Any) -> dict[str, bool]:
    """Register the extension."""
    app.connect("builder-inited", make_pages)
    app.connect("source-read", _on_source_read)
    return {"parallel_read_safe": True}
