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
    assert len(README.splitlines()) <= 150


def numbers(text):
    return re.findall(r"\d+\.\d+", text)


def test_the_speeds_are_those_of_the_page_processors():
    """README has one row per engine, the page one row per figure."""
    page = (CHECKOUT / "docs" / "internals" / "processors.md").read_text(encoding="utf-8")
    table = re.search(r"^\| \*\*.*(?:\n\|.*)*", README, re.MULTILINE)[0].splitlines()
    for start, name in ((0, "AMD EPYC Zen 5"), (4, "Intel Xeon")):
        section = page.partition(f"| **{name}**")[2].splitlines()[1:4]
        rows = [[numbers(cell)[:2] for cell in line.split("|")[2:-1]] for line in section]
        engines = [[numbers(cell) for cell in line.split("|")[2:-1]] for line in table[start:][:4]]
        assert engines == [list(column) for column in zip(*rows, strict=True)], name


def test_start_and_memory_are_those_of_the_page_benchmarks():
    page = (CHECKOUT / "docs" / "internals" / "benchmarks.md").read_text(encoding="utf-8")
    start = re.search(r"^\| time from the start.*?\| ([\d.]+) \| ([\d.]+)", page, re.MULTILINE)
    memory = re.search(r"^\| peak memory.*?\| ([\d.]+) \| ([\d.]+)", page, re.MULTILINE)
    shares = [round(100 * float(match[1]) / float(match[2])) for match in (start, memory)]
    text = " ".join(README.split())
    time_share, memory_share = shares
    expected = (
        f"in {time_share} % of transformers' time, with {memory_share} % of transformers' peak"
    )
    assert expected in text


def test_the_bundled_model_is_that_of_its_card():
    card = (CHECKOUT / "weights" / "README.md").read_text(encoding="utf-8")
    text = README.partition("## The bundled model")[2].partition("\n## ")[0]
    for figure in numbers(text):
        assert figure in card, figure
    assert len(numbers(text)) == 4
