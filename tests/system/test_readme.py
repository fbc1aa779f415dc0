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
