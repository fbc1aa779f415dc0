"""The workflows of GitHub Actions agree with pyproject.toml, and run .ci/run."""

import re
import sys

import pytest
from helpers.paths import CHECKOUT

import gpt2np

yaml = pytest.importorskip("yaml")  # required by transformers
tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11")

WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in CHECKOUT.glob(".github/workflows/*.yml")
}
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="no .github here")


def supported_versions():
    pattern = r"Programming Language :: Python :: (3\.\d+)"
    return [match[1] for line in PROJECT["classifiers"] if (match := re.fullmatch(pattern, line))]


def test_the_unit_tests_run_on_every_supported_version_and_system():
    matrix = WORKFLOWS["tests"]["jobs"]["unit"]["strategy"]["matrix"]
    assert matrix["python"] == supported_versions()
    assert [name.partition("-")[0] for name in matrix["os"]] == ["ubuntu", "macos", "windows"]


def test_the_supported_versions():
    versions = supported_versions()
    assert PROJECT["requires-python"] == f">={versions[0]}"
    assert versions == [f"3.{minor}" for minor in range(10, 10 + len(versions))]
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in versions
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    assert f"Python ≥ {versions[0]}" in readme


def test_the_version_is_written_once():
    """CHANGELOG.md has the version as that of the newest release; the tag is compared in CI."""
    assert "version" in PROJECT["dynamic"]
    assert "version:" not in (CHECKOUT / "CITATION.cff").read_text().replace("cff-version:", "")
    changelog = (CHECKOUT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(\d.*?)\]", changelog, re.MULTILINE)[0] == gpt2np.__version__
