"""Atomic writing: what a failure leaves, and which file its error names."""

import errno
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpt2np.data.files import (
    WriteError,
    atomic_folder,
    atomic_path,
    atomic_write_text,
    check_target,
)
from gpt2np.errors import InvalidArgumentError


def test_an_error_names_the_file_and_not_a_temporary_one(tmp_path):
    for path in (tmp_path / "no" / "x.txt", tmp_path / ("x" * 300)):
        with pytest.raises(WriteError, match=re.escape(str(path))) as caught:
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


def test_an_error_of_a_copy_into_a_folder_names_the_folder_and_a_foreign_one_its_own_file(tmp_path):
    out, source = tmp_path / "out", tmp_path / "source"
    for of_target, name in ((True, out), (False, source)):
        with pytest.raises(OSError, match="No space left") as caught, atomic_folder(out) as folder:
            target = str(folder / "copy") if of_target else None
            raise OSError(errno.ENOSPC, "No space left", str(source), None, target)
        assert isinstance(caught.value, WriteError) == of_target
        assert caught.value.filename == str(name)
    assert list(tmp_path.iterdir()) == []


def test_standard_output_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match="- is standard output, but this result needs"):
        check_target(Path("-"))


def test_threads_that_write_one_file_do_not_mix(tmp_path):
    path = tmp_path / "x.txt"

    def write(letter):
        for _ in range(100):
            with atomic_path(path) as temporary, temporary.open("w") as file:
                for _ in range(10):
                    file.write(letter)
                    file.flush()
            assert path.read_text() in ("a" * 10, "b" * 10)
        return True

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(write, "ab"))


def test_the_usual_permissions(tmp_path):
    (tmp_path / "usual").touch()
    atomic_write_text(tmp_path / "x", "a")
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "usual").stat().st_mode


class TestLinks:
    def test_a_link_is_written_through(self, tmp_path):
        target, link = tmp_path / "disk" / "y.txt", tmp_path / "x.txt"
        target.parent.mkdir()
        target.write_text("old")
        link.symlink_to("disk/y.txt")
        check_target(link)
        atomic_write_text(link, "new")
        assert link.is_symlink() and target.read_text() == "new" and not target.is_symlink()

    def test_a_broken_link_is_refused(self, tmp_path):
        (tmp_path / "x.txt").symlink_to("no.txt")
        with pytest.raises(InvalidArgumentError, match=r"x\.txt is a broken link; remove it"):
            check_target(tmp_path / "x.txt")

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
    def test_a_fifo_stays_one(self, tmp_path):
        os.mkfifo(tmp_path / "x")
        with pytest.raises(InvalidArgumentError, match="x is not a file"):
            check_target(tmp_path / "x")
        with pytest.raises(OSError, match="not a file"):
            atomic_write_text(tmp_path / "x", "a")
        assert (tmp_path / "x").is_fifo()
