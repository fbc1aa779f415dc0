"""Atomic writing: what a failure leaves, and which file its error names."""

import errno
import re
from pathlib import Path

import numpy as np
import pytest

from gpt2np.data.files import atomic_path, atomic_write_text, check_output_file
from gpt2np.errors import InvalidArgumentError
from gpt2np.interp import trace


def test_an_error_names_the_file_and_not_a_temporary_one(tmp_path):
    for path in (tmp_path / "no" / "x.txt", tmp_path / ("x" * 300)):
        with pytest.raises(OSError, match=re.escape(str(path))) as caught:
            atomic_write_text(path, "a")
        assert caught.value.filename == str(path) and ".tmp" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_keeps_the_old_file(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("old")
    for error in (OSError(errno.ENOSPC, "No space left on device"), OSError("1 of 9 written")):
        with pytest.raises(OSError, match=re.escape(str(path))), atomic_path(path) as temporary:
            temporary.write_text("new")
            raise error
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_trace_that_cannot_be_saved_names_its_file(lm, tmp_path):
    found = trace(lm, "The king", "embed")
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "no" / "x.npz"))):
        found.save(tmp_path / "no" / "x.npz")
    found.save(tmp_path / "x.npz")
    assert np.array_equal(np.load(tmp_path / "x.npz")["embed"], found["embed"])


def test_standard_output_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match="- is standard output, but this result needs"):
        check_output_file(Path("-"))
