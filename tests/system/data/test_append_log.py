"""One job at a time uses an AppendLog, a killed process releases it, and foreign files survive."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
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
        log.save(ResumePoint(0, 1, 3, log.lengths, (0,), "digest"), force=True)
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
            log.save(ResumePoint(0, 1, 3, log.lengths, (0,), "digest"), force=True)
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

    @pytest.mark.parametrize("linked", ["", "ids", "lock", "journal", "task.json", "scratch"])
    def test_links_are_refused(self, tmp_path, linked):
        folder = tmp_path / "x.partial"
        target = tmp_path / "target"
        if linked:
            folder.mkdir()
            target.write_text("kept")
        else:
            target.mkdir()
            (target / "ids").write_text("kept")
        (folder / linked).symlink_to(target)
        told = pytest.raises(GPT2NPError, match=r"x\.partial, .* (link|foreign file)")
        with told, AppendLog(folder, ("ids",)) as log:
            log.resume(TASK)
        assert (target if linked else target / "ids").read_text() == "kept"


def test_the_folder_of_a_linked_output_is_beside_its_target(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "x.bin").symlink_to(tmp_path / "disk" / "y.bin")
    assert partial_folder(tmp_path / "x.bin") == tmp_path / "disk" / "y.bin.partial"
