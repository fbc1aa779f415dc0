"""The pages of the documentation: links, generated pages, and lists that must be complete."""

import re
import subprocess
import sys

import pytest
from helpers.paths import CHECKOUT

import gpt2np
from gpt2np import interp

DOCS = CHECKOUT / "docs"
GENERATED = ("source", "tutorial/walkthrough")
COPIES = ("contributing", "internals/notes", "reference/bundled_model", "reference/changelog",
          "reference/security")  # fmt: skip
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
    and path not in [DOCS / f"{name}.md" for name in COPIES]
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
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), f"{target}#{anchor}"


def test_the_generated_pages_are_up_to_date():
    result = subprocess.run(
        [sys.executable, DOCS / "generate.py", "--check"], capture_output=True, cwd=CHECKOUT
    )
    assert result.returncode == 0, result.stderr.decode()


def test_the_api_pages_have_every_public_name():
    directive = r"^\.\. (?:auto)?(?:class|function|data|method):: (?:[\w.]+\.)?(\w+)"
    pages = [path.read_text(encoding="utf-8") for path in DOCS.glob("reference/api/*.md")]
    documented = {name for text in pages for name in re.findall(directive, text, re.MULTILINE)}
    documented |= set(re.findall(r"\w+Error|GenerationInterrupted", "".join(pages)))
    assert {*gpt2np.__all__, *interp.__all__} <= documented


def test_the_architecture_names_every_package_and_every_module_of_the_core():
    text = read("docs/internals/architecture.md")
    package = CHECKOUT / "gpt2np"
    for folder in package.iterdir():
        if (folder / "__init__.py").exists():
            assert f"  {folder.name}/" in text, folder.name
    for name in ("model", "runtime", "kernels", "checkpoint"):
        section = text.partition(f"### {name}/")[2].partition("\n#")[0]
        modules = {path.name for path in (package / name).glob("*.py")} - {"__init__.py"}
        assert set(re.findall(r"^\| `(\w+\.py)` \|", section, re.MULTILINE)) == modules


def test_both_parts_of_the_glossary_are_sorted():
    parts = read("docs/reference/glossary.md").split("\n## ")[1:]
    terms = [re.findall(r"^\| `?([^|`]+?)`? \|", part, re.MULTILINE)[1:] for part in parts]
    assert len(terms) == 2 and min(map(len, terms)) > 50
    for part in terms:
        assert part == sorted(part, key=str.lower)


def test_every_page_is_in_the_table_of_its_folder():
    for index in DOCS.rglob("index.md"):
        if not any(index.is_relative_to(DOCS / folder) for folder in GENERATED):
            listed = set(re.findall(r"^([\w/]+)$", index.read_text(encoding="utf-8"), re.MULTILINE))
            pages = {path.stem for path in index.parent.glob("*.md")} - {"index"}
            assert pages <= listed, index
