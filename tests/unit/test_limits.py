"""Environment variables that change a limit."""

import re
from dataclasses import fields

import pytest
from helpers.paths import CHECKOUT

from gpt2np import InvalidArgumentError
from gpt2np.limits import Limits, limits


@pytest.fixture(autouse=True)
def _read_again():
    limits.cache_clear()
    yield
    limits.cache_clear()


def test_a_variable_changes_one_limit(monkeypatch):
    monkeypatch.setenv("GPT2NP_MAX_LINE_BYTES", "2000")
    assert limits() == Limits(max_line_bytes=2000)


@pytest.mark.parametrize("value", ["0", "-1", "1e9", "", "²", "9" * 5000])
def test_a_variable_that_is_no_limit(value, monkeypatch):
    monkeypatch.setenv("GPT2NP_MAX_LINE_BYTES", value)
    with pytest.raises(InvalidArgumentError, match="expected a positive integer") as error:
        limits()
    assert len(str(error.value)) < 250


def test_the_documented_five_limits_can_be_raised():
    page = (CHECKOUT / "docs/reference/environment.md").read_text(encoding="utf-8")
    names = {limit.name.upper() for limit in fields(Limits)}
    assert set(re.findall(r"^\| `GPT2NP_(MAX_\w+)`", page, re.MULTILINE)) == names
    assert len(names) == 5
