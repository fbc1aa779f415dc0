"""The pages of the documentation: links, generated pages, and lists that must be complete."""

import re
from importlib import import_module

import pytest
from helpers.paths import CHECKOUT

DOCS = CHECKOUT / "docs"
GENERATED = ("source", "tutorial/walkthrough")
MADE = ("contributing", "internals/notes", "reference/bundled_model", "reference/changelog",
        "reference/commands", "reference/options", "reference/security")  # fmt: skip
"""Pages that the build of the site makes: a clone lacks them."""
PAGES = sorted(
    path.relative_to(CHECKOUT).as_posix()
    for path in [
        *CHECKOUT.glob("*.md"),
        CHECKOUT / "benchmarks" / "NOTES.md",
        CHECKOUT / "weights" / "README.md",
        CHECKOUT / "examples" / "walkthrough" / "README.md",
        *DOCS.rglob("*.md"),
    ]
    if not any(path.is_relative_to(DOCS / folder) for folder in GENERATED)
    and path not in [DOCS / f"{name}.md" for name in MADE]
)


def read(page):
    return (CHECKOUT / page).read_text(encoding="utf-8")


def anchors(text):
    """Return the anchors of a page's headings, as code hosts and MyST make them."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(page):
    folder = (CHECKOUT / page).parent
    text = re.sub(r"^```.*?^```", "", read(page), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]*`(?!\])", "", text)
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)", text):
        path = (folder / target).resolve() if target else CHECKOUT / page
        assert path.exists() and path not in [DOCS / f"{name}.md" for name in MADE], target
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), f"{target}#{anchor}"


def documented_names():
    """Yield (module, name) for each entry of the API pages."""
    directive = r"^\.\. (currentmodule|(?:auto)?(?:class|function|data|exception)):: ([\w.]+)"
    for path in sorted(DOCS.glob("reference/api/*.md")):
        module = ""
        for kind, name in re.findall(directive, read(path), re.MULTILINE):
            if kind == "currentmodule":
                module = name
            else:
                yield module, name.partition("(")[0]


def test_the_api_pages_have_exactly_the_public_names():
    """Public are the names in `__all__`. A name that several modules export has one entry."""
    package = CHECKOUT / "gpt2np"
    public = set()
    for path in package.rglob("*.py"):
        if re.search(r"^__all__ = ", path.read_text(encoding="utf-8"), re.MULTILINE):
            parts = path.relative_to(CHECKOUT).with_suffix("").parts
            module = ".".join(part for part in parts if part != "__init__")
            public |= {(module, name) for name in import_module(module).__all__}
    documented = list(documented_names())
    assert len(documented) == len(set(documented)) and set(documented) <= public
    assert {name for _, name in public} == {name for _, name in documented}
    for module, name in public:
        entries = [import_module(m) for m, n in documented if n == name]
        assert getattr(import_module(module), name) in [getattr(e, name) for e in entries], name


def test_the_architecture_names_every_package_and_every_module_of_the_core():
    text = read("docs/internals/design.md")
    package = CHECKOUT / "gpt2np"
    for folder in package.iterdir():
        if (folder / "__init__.py").exists():
            assert f"  {folder.name}/" in text, folder.name
    for name in ("model", "runtime", "kernels", "checkpoint"):
        section = text.partition(f"### {name}/")[2].partition("\n#")[0]
        modules = {path.name for path in (package / name).glob("*.py")} - {"__init__.py"}
        assert set(re.findall(r"^\| `(\w+\.py)` \|", section, re.MULTILINE)) == modules
