"""One job at a time uses an AppendLog, a killed process releases it, and foreign files survive."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from threading import Barrier

import pytest

from gpt2np.data.append_log import AppendLog, ResumePoint, Task, partial_folder
from gpt2np.errors import GPT2NPError

TASK = Task({}, {}, lambda numbers: dict.fromkeys(numbers, "digest"), "{}{}".format)
HOLDER = """
import sys, time
from pathlib import Path
from gpt2np.data.append_log import AppendLog, Task
with AppendLog(Path(sys.argv[1]), ("ids",)) as log:
    log.resume(Task({}, {}, lambda numbers: dict.fromkeys(numbers, "digest"), "{}{}".format))
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_process_at_a_time(tmp_path):
    folder = tmp_path / "x.partial"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, folder], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    for _ in range(2):
        told = pytest.raises(GPT2NPError, match=r"another process is writing .*x\.partial")
        with told, AppendLog(folder, ("ids",)) as log:
            log.resume(TASK)
        assert (folder / "ids").exists()  # even without a resume point
    holder.kill()
    holder.communicate()
    with AppendLog(folder, ("ids",)) as log:
        assert log.resume(TASK).done == 0
        log.append(b"abc")
        log.save(ResumePoint(0, 1, 3, log.lengths, (0,), "digest", log.checksums), force=True)
    with AppendLog(folder, ("ids",)) as log:
        assert log.lengths == ()
        log.resume(TASK)
        assert log.lengths == (3,)
        log.remove()
    assert list(tmp_path.iterdir()) == []


def test_one_thread_at_a_time(tmp_path):
    """Each of eight threads locks the log or is refused; none enters while another holds it."""
    barrier, inside = Barrier(8), []

    def use(_):
        barrier.wait()
        for _ in range(50):
            try:
                with AppendLog(tmp_path / "x.partial", ("ids",)) as log:
                    log.resume(TASK)
                    inside.append(1)
                    assert len(inside) == 1
                    log.append(b"abc")
                    inside.pop()
            except GPT2NPError as error:
                assert "another process is writing" in str(error)
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(8)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_that_outlives_its_parent_holds_no_lock(tmp_path):
    with AppendLog(tmp_path / "x.partial", ("ids",)) as log:
        log.resume(TASK)
        context = get_context("fork")
        end = context.Event()
        child = context.Process(target=end.wait)
        child.start()
    with AppendLog(tmp_path / "x.partial", ("ids",)) as log:
        log.resume(TASK)
    end.set()
    child.join()


class TestForeignFiles:
    def test_a_folder_of_another_purpose_is_refused_and_kept(self, tmp_path):
        folder = tmp_path / "x.partial"
        (folder / "photos").mkdir(parents=True)
        (folder / "letter.txt").write_text("dear")
        told = pytest.raises(GPT2NPError, match=r"x\.partial, where unfinished .* (letter|photos)")
        with told, AppendLog(folder, ("ids",)) as log:
            log.resume(TASK)
        assert sorted(path.name for path in folder.iterdir()) == ["letter.txt", "photos"]

    def test_a_foreign_file_with_the_name_of_an_own_one_is_kept(self, tmp_path):
        folder = tmp_path / "x.partial"
        (folder / "photos").mkdir(parents=True)
        (folder / "ids").write_text("dear")
        told = pytest.raises(GPT2NPError, match=r"x\.partial, where unfinished .* photos")
        with told, AppendLog(folder, ("ids",)) as log:
            log.resume(TASK)
        assert sorted(path.name for path in folder.iterdir()) == ["ids", "photos"]
        assert (folder / "ids").read_text() == "dear"

    def test_foreign_files_beside_a_job_are_kept(self, tmp_path):
        folder = tmp_path / "x.partial"
        with AppendLog(folder, ("ids",)) as log:
            log.resume(TASK)
            log.append(b"abc")
            (folder / "photos").mkdir()
            (folder / "letter.txt").write_text("dear")
            log.save(ResumePoint(0, 1, 3, log.lengths, (0,), "digest", log.checksums), force=True)
        with AppendLog(folder, ("ids",)) as log:
            assert log.resume(TASK).done == 3
            log.remove()
        assert sorted(path.name for path in folder.iterdir()) == ["letter.txt", "photos"]

    def test_an_own_folder_without_a_task_is_used(self, tmp_path):
        """A process killed right after its start leaves such a folder."""
        folder = tmp_path / "x.partial"
        folder.mkdir()
        for name in ("lock", "ids", "scratch"):
            (folder / name).write_bytes(b"")
        with AppendLog(folder, ("ids",)) as log:
            log.resume(TASK)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("linked", "kind"),
        [
            *product(
                ["ids", "lock", "journal", "task.json", "scratch"],
                ["link", "broken link", "hard link", "pipe", "folder"],
            ),
            *product([""], ["link", "broken link", "pipe"]),  # the folder itself
        ],
    )
    def test_links_are_refused(self, tmp_path, linked, kind):
        """Neither the target of a link nor any other file changes, and a pipe blocks nothing."""
        folder, target = tmp_path / "x.partial", tmp_path / "target"
        if linked:
            folder.mkdir()
            (folder / "parts").write_text("kept")
        target.write_text("kept")
        make = {
            "link": lambda path: path.symlink_to(target),
            "broken link": lambda path: path.symlink_to(tmp_path / "missing"),
            "hard link": lambda path: path.hardlink_to(target),
            "pipe": os.mkfifo,
            "folder": Path.mkdir,
        }
        make[kind](folder / linked if linked else folder)
        before = sorted(tmp_path.rglob("*"))
        told = pytest.raises(GPT2NPError, match=r"x\.partial, .* link")
        with told, AppendLog(folder, ("ids", "parts")) as log:
            log.resume(TASK)
        assert target.read_text() == "kept" and sorted(tmp_path.rglob("*")) == before

    def test_a_refused_folder_keeps_files_with_our_names(self, tmp_path):
        folder = tmp_path / "x.partial"
        folder.mkdir()
        for name in ("lock", "ids", "journal", "letter.txt"):
            (folder / name).write_text("dear")
        told = pytest.raises(GPT2NPError, match=r"foreign file or link, letter\.txt")
        with told, AppendLog(folder, ("ids",)) as log:
            log.resume(TASK)
        assert {path.read_text() for path in folder.iterdir()} == {"dear"}


class TestDamage:
    """A resume point counts only if the journal's line and the files are as they were written."""

    @staticmethod
    def _resume(folder):
        with AppendLog(folder, ("ids", "parts")) as log:
            point = log.resume(TASK)
            contents = [path.read_bytes() for path in log.paths]
            log.save(point, force=True)
        return point.done, contents

    @pytest.fixture
    def folder(self, tmp_path):
        """A folder with the resume points 3 (b"abc", b"x") and 6 (b"abcdef", b"xy")."""
        folder = tmp_path / "x.partial"
        with AppendLog(folder, ("ids", "parts")) as log:
            log.resume(TASK)
            for contents, done in (((b"abc", b"x"), 3), ((b"def", b"y"), 6)):
                log.append(*contents)
                point = ResumePoint(0, 1, done, log.lengths, (0, 0), "digest", log.checksums)
                log.save(point, force=True)
            log.append(b"not saved", b"z")
        return folder

    def test_no_damage(self, folder):
        assert self._resume(folder) == (6, [b"abcdef", b"xy"])
        assert self._resume(folder) == (6, [b"abcdef", b"xy"])

    @pytest.mark.parametrize(
        ("name", "content", "done"),
        [
            ("ids", b"abcdeF", 3),
            ("ids", b"abcde", 3),
            ("ids", b"aBcdef", 0),
            ("ids", b"", 0),
            ("parts", b"xY", 3),
            ("parts", b"X", 0),
            ("journal", b"", 0),
        ],
    )
    def test_changed_files(self, folder, name, content, done):
        (folder / name).write_bytes(content)
        kept = {0: [b"", b""], 3: [b"abc", b"x"]}
        assert self._resume(folder) == (done, kept[done])

    def test_a_changed_journal(self, folder):
        journal = (folder / "journal").read_text()
        (folder / "journal").write_text(journal.replace('"done": 6', '"done": 5'))
        assert self._resume(folder)[0] == 3

    def test_after_truncation(self, folder):
        with AppendLog(folder, ("ids", "parts")) as log:
            log.resume(TASK)
            log.truncate((2, 1))
            log.append(b"x", b"")
            point = ResumePoint(0, 1, 4, log.lengths, (0, 0), "digest", log.checksums)
            log.save(point, force=True)
        assert self._resume(folder) == (4, [b"abx", b"x"])


def test_the_folder_of_a_linked_output_is_beside_its_target(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "x.bin").symlink_to(tmp_path / "disk" / "y.bin")
    assert partial_folder(tmp_path / "x.bin") == tmp_path / "disk" / "y.bin.partial"
