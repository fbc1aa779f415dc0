"""The README is short, and CI runs its test command. tests/system/docs runs its examples."""

import re

import pytest
from helpers.paths import CHECKOUT

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")


def test_ci_runs_the_readmes_test_command():
    if not (CHECKOUT / ".ci" / "run").exists():
        pytest.skip("no .ci/run here")
    shell_blocks = re.findall(r"^```sh\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    command = next(block.strip() for block in shell_blocks if "pytest" in block)
    assert command in (CHECKOUT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 135


def numbers(text):
    return re.findall(r"\d+\.\d+", text)


def test_the_speeds_are_those_of_the_page_processors():
    page = (CHECKOUT / "docs" / "internals" / "processors.md").read_text(encoding="utf-8")
    text = " ".join(README.split())
    for name in ("AMD EPYC Zen 5", "Intel Xeon"):
        rows = page.partition(f"| **{name}**")[2].splitlines()[1:4]
        ratios = [float(n) for row in rows for n in numbers(row.split("|")[2])]
        expected = f"{min(ratios):.1f} to {max(ratios):.1f} times as fast"
        assert re.search(rf"{expected}[^.,]* on an {name}", text), (name, expected)


def test_the_bundled_model_is_that_of_its_card():
    card = (CHECKOUT / "weights" / "README.md").read_text(encoding="utf-8")
    text = README.partition("## The bundled model")[2].partition("\n## ")[0]
    for figure in numbers(text):
        assert figure in card, figure
    assert numbers(text)
