"""One job at a time writes an output, a killed process releases it, and foreign files survive."""

import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from threading import Barrier

import pytest
from helpers.parts import part_paths

from gpt2np.data import files, resumable
from gpt2np.data.resumable import (
    Job,
    JobCallbacks,
    Position,
    Results,
    partial_folder,
    run_job,
    work_folder,
)
from gpt2np.errors import GPT2NPError, InvalidArgumentError

HOLDER = """
import sys, time
from pathlib import Path
from gpt2np.data.resumable import work_folder
with work_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""
TEXTS = [b"one\n", b"two\n", b"three\n", b"four\n"]


class Interrupted(BaseException):
    pass


def make_job(stop=None, settings=None, digests=None):
    """Return a job that writes TEXTS, each a step; before step `stop`, it is interrupted."""

    def steps(position):
        for i in range(position.files, len(TEXTS)):
            if i == stop:
                raise Interrupted
            yield Position(i + 1, 0, i + 1, f"digest {i + 1}"), Results((TEXTS[i], b"x"))

    def assemble(read, path):
        path.write_bytes(b"".join(read(0)) + b"".join(read(1)))

    digests = digests or {i: f"digest {i}" for i in range(1, 5)}
    return Job(settings or {}, {}, lambda _: digests, "{}{}".format, steps, assemble)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "x"


@pytest.fixture
def interrupted(out, monkeypatch):
    """The work folder of a job that was interrupted after three of four steps."""
    monkeypatch.setattr(resumable, "PART_SECONDS", 0)
    with pytest.raises(Interrupted):
        run_job(make_job(stop=3), out)
    return partial_folder(out)


def resume(out, job=None, **options):
    """Run a job, whose output must be that of an uninterrupted run; return what it told."""
    told = []
    run_job(job or make_job(), out, JobCallbacks(told.append, told.append), **options)
    assert out.read_bytes() == b"".join(TEXTS) + b"xxxx"
    return told


def test_one_process_at_a_time(out, tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, out], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    for _ in range(2):
        with pytest.raises(GPT2NPError, match=r"another process is writing .*x\.partial"):
            run_job(make_job(), out)
        assert (partial_folder(out) / "lock").exists()  # even without a part
    holder.kill()
    holder.communicate()
    assert resume(out) == []
    assert list(tmp_path.iterdir()) == [out]


def test_one_thread_at_a_time(out, tmp_path):
    """Each of eight threads locks the folder or is refused; none enters while another holds it."""
    barrier, inside = Barrier(8), []

    def use(_):
        barrier.wait()
        for _ in range(50):
            try:
                with work_folder(out):
                    inside.append(1)
                    assert len(inside) == 1
                    inside.pop()
            except GPT2NPError as error:
                assert "another process is writing" in str(error)
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(8)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_that_outlives_its_parent_holds_no_lock(out):
    with work_folder(out):
        context = get_context("fork")
        end = context.Event()
        child = context.Process(target=end.wait)
        child.start()
    with work_folder(out):
        end.set()
    child.join()


class TestOutput:
    def test_two_runs_of_one_job(self, out, tmp_path):
        """The second run, which began before the first ended, does not replace its output."""
        run_job(make_job(), out)
        with pytest.raises(InvalidArgumentError, match="x exists already; give force=True"):
            run_job(make_job(), out)
        assert resume(out, force=True) == []

    @pytest.mark.parametrize("links", [True, False])
    @pytest.mark.parametrize("appears", ["lock", "end"])
    def test_an_output_that_appears_meanwhile(self, out, monkeypatch, appears, links):
        """After the check before the lock, and at the end; also without hard links."""

        def hardlink_to(*_):
            raise OSError(errno.EPERM, "Operation not permitted")

        if not links:
            monkeypatch.setattr(Path, "hardlink_to", hardlink_to)
        name = {"lock": "_lock", "end": "output_folder"}[appears]
        replaced = getattr(resumable, name)

        def appear(folder):
            out.write_text("of another")
            return replaced(folder)

        with monkeypatch.context() as patch:
            patch.setattr(resumable, name, appear)
            with pytest.raises(InvalidArgumentError, match="x exists already; give force=True"):
                run_job(make_job(), out)
        assert out.read_text() == "of another"
        assert partial_folder(out).exists() == (appears == "end")
        out.unlink()
        assert resume(out) == ([4] if appears == "end" else [])
        assert not partial_folder(out).exists()

    def test_a_disk_that_is_full_at_the_end(self, out):
        """The parts stay, the unfinished output does not, and the next run only joins them."""

        def assemble(read, path):
            path.write_bytes(b"".join(read(0)))
            raise OSError(errno.ENOSPC, "No space left on device")

        with pytest.raises(OSError, match=r"No space left on device: .*x") as error:
            run_job(replace(make_job(), assemble=assemble), out)
        assert error.value.filename.startswith(f"{out}")
        names = [path.name for path in partial_folder(out).iterdir() if path.name[:5] != "part-"]
        assert sorted(names) == ["lock", "task.json"]
        assert resume(out) == [4]

    def test_killed_when_the_output_was_in_place(self, out, monkeypatch):
        def stop(*arguments, **options):
            files.move_into_place(*arguments, **options)
            os._exit(9)

        process = get_context("fork").Process(target=run_job, args=(make_job(), out))
        with monkeypatch.context() as patch:
            patch.setattr(resumable, "move_into_place", stop)
            process.start()
        process.join()
        assert process.exitcode == 9 and out.exists() and part_paths(partial_folder(out))
        assert resume(out, force=True) == [4]
        assert not partial_folder(out).exists()


class TestForeignFiles:
    @pytest.mark.parametrize(
        "names", [[], ["task.txt"], ["lock", "new", "output", "part-00000000"]]
    )
    def test_a_folder_of_another_purpose_is_refused_and_kept(self, out, names):
        folder = partial_folder(out)
        (folder / "photos").mkdir(parents=True)
        for name in [*names, "letter.txt"]:
            (folder / name).write_text("dear")
        before = sorted(folder.iterdir())
        told = pytest.raises(GPT2NPError, match=r"x\.partial, where unfinished .* foreign")
        for force in (False, True):
            with told:
                run_job(make_job(), out, force=force)
            assert sorted(folder.iterdir()) == before
            assert {path.read_text() for path in before if path.is_file()} == {"dear"}

    @pytest.mark.parametrize("task", ['{"settings": {}, "fingerprints": {}}', "[]", "dear"])
    def test_unfinished_work_of_another_version(self, out, task):
        folder = partial_folder(out)
        folder.mkdir()
        for name in ("lock", "ids", "journal"):
            (folder / name).write_text("dear")
        (folder / "task.json").write_text(task)
        for force in (False, True):
            with pytest.raises(GPT2NPError, match="finish it with the version that began it, or r"):
                run_job(make_job(), out, force=force)
        assert (folder / "task.json").read_text() == task
        assert (folder / "ids").read_text() == (folder / "lock").read_text() == "dear"

    def test_foreign_files_beside_a_job_are_kept(self, out, interrupted):
        (interrupted / "photos").mkdir()
        (interrupted / "letter.txt").write_text("dear")
        assert resume(out) == [3]
        assert sorted(path.name for path in interrupted.iterdir()) == ["letter.txt", "photos"]

    def test_a_folder_without_a_task_is_used(self, out, tmp_path):
        """A process killed right after its start leaves such a folder."""
        partial_folder(out).mkdir()
        for name in ("lock", "new"):
            (partial_folder(out) / name).write_bytes(b"")
        assert resume(out) == []
        assert list(tmp_path.iterdir()) == [out]

    @pytest.mark.parametrize(
        ("linked", "kind"),
        [
            *product(
                ["part-00000009-00000000", "lock", "task.json", "new"],
                ["link", "broken link", "hard link", "pipe", "folder"],
            ),
            *product(["output"], ["link", "broken link", "hard link", "pipe"]),
            *product([""], ["link", "broken link", "pipe"]),  # the folder itself
        ],
    )
    def test_links_are_refused(self, out, tmp_path, interrupted, linked, kind):
        """Neither the target of a link nor any other file changes, and a pipe blocks nothing."""
        target, path = tmp_path / "target", interrupted / linked
        target.write_text("kept")
        if not linked:
            path.rename(tmp_path / "elsewhere")
        path.unlink(missing_ok=True)
        make = {
            "link": lambda path: path.symlink_to(target),
            "broken link": lambda path: path.symlink_to(tmp_path / "missing"),
            "hard link": lambda path: path.hardlink_to(target),
            "pipe": os.mkfifo,
            "folder": Path.mkdir,
        }
        make[kind](path)
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(GPT2NPError, match=r"x\.partial, .* link"):
            run_job(make_job(), out)
        assert target.read_text() == "kept" and sorted(tmp_path.rglob("*")) == before


class TestDamage:
    """A part counts only if it and all parts before it are as they were written."""

    def test_no_damage(self, out, interrupted):
        assert len(part_paths(interrupted)) == 3
        assert resume(out) == [3]

    @pytest.mark.parametrize("damaged", [0, 1, 2])
    @pytest.mark.parametrize("kind", ["flip", "cut", "empty", "remove", "rename"])
    def test_changed_parts(self, out, interrupted, damaged, kind):
        path = part_paths(interrupted)[damaged]
        content = path.read_bytes()
        if kind in ("remove", "rename"):
            path.rename(interrupted / "part-00000007-00000000")
        if kind == "remove":
            (interrupted / "part-00000007-00000000").unlink()
        else:
            changed = {"flip": content[:-1] + b"y", "cut": content[:-1], "empty": b""}
            (path if path.exists() else interrupted / "part-00000007-00000000").write_bytes(
                changed.get(kind, content)
            )
        is_noticed = damaged < 2 or kind != "remove"  # nothing comes after the last part
        told = resume(out)
        assert (len(told) == 1 + (damaged > 0)) if is_noticed else told == [2]
        if is_noticed:
            assert "is damaged, or the part before it is missing" in told[0][0]
        assert told[1:] == [damaged][: damaged and is_noticed] or not is_noticed

    @pytest.mark.parametrize("number", [1, 2])
    def test_a_part_that_vanishes_while_the_job_runs(self, out, interrupted, number):
        """The output would lack results."""

        def remove(*_):
            part_paths(interrupted)[number].unlink(missing_ok=True)

        with pytest.raises(GPT2NPError, match=r"files in .*x\.partial have changed meanwhile"):
            run_job(make_job(), out, JobCallbacks(on_progress=remove))
        assert not out.exists()
        assert resume(out)[-1] == number

    def test_a_part_that_was_written_in_half(self, out, interrupted):
        (interrupted / "new").write_bytes(b"half of it")
        assert resume(out) == [3]

    @pytest.mark.parametrize("after_rename", [True, False])
    def test_an_interruption_while_a_part_is_written(self, out, monkeypatch, after_rename):
        """The part is written again, under the same name, before the run ends."""
        monkeypatch.setattr(resumable, "PART_SECONDS", 0)
        calls, write = [], resumable._write

        def interrupt(path, content):
            calls.append(path)
            if len(calls) == 3 and not after_rename:
                raise Interrupted
            write(path, content)
            if len(calls) == 3:
                raise Interrupted

        with monkeypatch.context() as patch, pytest.raises(Interrupted):
            patch.setattr(resumable, "_write", interrupt)
            run_job(make_job(), out)
        assert calls[2] == calls[3] and len(part_paths(partial_folder(out))) == 2
        assert resume(out) == [2]

    def test_an_interruption_writes_the_results_so_far(self, out):
        with pytest.raises(Interrupted):
            run_job(make_job(stop=3), out)
        assert len(part_paths(partial_folder(out))) == 1
        assert resume(out) == [3]


@pytest.mark.parametrize(
    ("job", "told"),
    [
        (make_job(settings={"n": 1}), "n was not given, is 1; undo the change"),
        (make_job(digests={1: "digest 1", 2: "other", 3: "other"}), "12 has changed; undo"),
        (make_job(digests={1: "digest 1", 2: "digest 2"}), "23 has changed; undo"),
    ],
)
def test_changes(out, interrupted, job, told):
    parts = part_paths(interrupted)
    with pytest.raises(InvalidArgumentError, match=told):
        run_job(job, out)
    assert part_paths(interrupted) == parts
    assert told.split(";")[0] in resume(out, job, force=True)[0][0]


def test_large_results_are_several_parts(out, monkeypatch):
    monkeypatch.setattr(resumable, "_PART_BYTES", 10)
    with pytest.raises(Interrupted):
        run_job(make_job(stop=3), out)
    assert len(part_paths(partial_folder(out))) == 2
    assert resume(out) == [3]


def test_the_folder_of_a_linked_output_is_beside_its_target(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "x.bin").symlink_to(tmp_path / "disk" / "y.bin")
    assert partial_folder(tmp_path / "x.bin") == tmp_path / "disk" / "y.bin.partial"
