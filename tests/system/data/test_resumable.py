"""One job at a time writes an output, a killed process releases it, and a resumed job is the same.

Results are appended, and count up to the last whole line of progress.jsonl that they fit.
"""

import errno
import os
import subprocess
import sys
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest
from helpers.parts import saves

from gpt2np.data import resumable
from gpt2np.data.corpus import UnreadableFileError
from gpt2np.data.resumable import (
    Job,
    JobCallbacks,
    Position,
    Results,
    Step,
    check_output,
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


def make_job(stop=None, settings=None, stamps=(1, 2, 3, 4), error=Interrupted, **changes):
    """Return a job that writes TEXTS, each a step; before step `stop`, it is interrupted."""

    def steps(position):
        for i in range(position.inputs, len(TEXTS)):
            if i == stop:
                raise error
            yield Step(Position(i + 1, 0, i + 1), i + 1, Results((TEXTS[i], b"x")))

    def assemble(streams, path):
        path.write_bytes(b"".join(stream.read_bytes() for stream in streams))

    def stamps_of(n):
        return list(stamps[:n])

    job = Job(settings or {}, stamps_of, "input {}".format, steps, assemble, 2)
    return replace(job, **changes)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "x"


@pytest.fixture
def interrupted(out, monkeypatch):
    """The work folder of a job that was interrupted after three of four steps."""
    monkeypatch.setattr(resumable, "SAVE_SECONDS", 0)
    with pytest.raises(Interrupted):
        run_job(make_job(stop=3), out)
    return partial_folder(out)


def resume(out, job=None, **options):
    """Run a job, whose output must be that of an uninterrupted run; return what it told."""
    told = []
    run_job(job or make_job(), out, JobCallbacks(told.append, told.append), **options)
    assert out.read_bytes() == b"".join(TEXTS) + b"xxxx"
    return told


def test_results_that_were_written_after_the_last_save_are_dropped(out, monkeypatch):
    monkeypatch.setattr(resumable, "SAVE_SECONDS", 0)
    for stop in (1, 2, 3):
        with pytest.raises(Interrupted):
            run_job(make_job(stop=stop), out)
        for stream in partial_folder(out).glob("stream-*"):
            stream.write_bytes(stream.read_bytes() + b"?" * 99)
    assert resume(out) == [3]


def test_one_process_at_a_time(out, tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, out], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    for _ in range(2):
        with pytest.raises(GPT2NPError, match=r"another process is writing .*x\.partial"):
            run_job(make_job(), out)
        assert (partial_folder(out) / "lock").exists()  # even without results
    holder.kill()
    holder.communicate()
    assert resume(out) == []
    assert list(tmp_path.iterdir()) == [out]


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
    def test_two_runs_of_one_job(self, out):
        """The second run, which began before the first ended, does not replace its output."""
        run_job(make_job(), out)
        with pytest.raises(InvalidArgumentError, match="x exists already; give `force=True`"):
            run_job(make_job(), out)
        assert resume(out, force=True) == []

    def test_an_output_that_appears_meanwhile_is_kept(self, out):
        def appear(*_):
            out.write_text("of another")

        with pytest.raises(InvalidArgumentError, match="x exists already; give `force=True`"):
            run_job(make_job(), out, JobCallbacks(on_progress=appear))
        assert out.read_text() == "of another" and partial_folder(out).exists()
        out.unlink()
        assert resume(out) == [4]

    def test_a_first_stream_that_is_the_output_is_renamed(self, out, tmp_path):
        run_job(make_job(assemble=lambda streams, path: None), out)
        assert out.read_bytes() == b"".join(TEXTS) and list(tmp_path.iterdir()) == [out]

    def test_without_results_there_is_no_output(self, out, tmp_path):
        run_job(make_job(steps=lambda _: iter(()), assemble=lambda *_: None), out)
        assert list(tmp_path.iterdir()) == []

    def test_a_disk_that_is_full_at_the_end(self, out):
        """The results stay, the unfinished output does not, and the next run only assembles."""

        def assemble(streams, path):
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")

        with pytest.raises(OSError, match=r"No space left on device: .*x") as error:
            run_job(make_job(assemble=assemble), out)
        assert error.value.filename == f"{out}" and not out.exists()
        assert resume(out) == [4]

    def test_killed_when_the_output_was_in_place(self, out, tmp_path):
        replace = Path.replace

        def replace_and_die(path, target):
            replace(path, target)
            if path.name == "stream-0":
                os._exit(9)

        def run():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Path, "replace", replace_and_die)
                run_job(make_job(assemble=lambda *_: None), out)

        process = get_context("fork").Process(target=run)
        process.start()
        process.join()
        assert process.exitcode == 9 and out.read_bytes() == b"".join(TEXTS)
        with pytest.raises(InvalidArgumentError, match="x exists already; give `force=True`"):
            check_output(out, (), force=False)
        assert list(tmp_path.iterdir()) == [out]

    def test_an_older_output_beside_unfinished_work_removes_none_of_it(self, out, interrupted):
        (interrupted / "finished").write_text("1")
        out.write_text("older")
        check_output(out, (), force=True)
        assert resume(out, force=True) == [3]


def test_foreign_files_beside_a_job_are_kept(out, interrupted):
    (interrupted / "photos").mkdir()
    (interrupted / "letter.txt").write_text("dear")
    assert resume(out) == [3]
    assert sorted(path.name for path in interrupted.iterdir()) == ["letter.txt", "photos"]


class TestDamage:
    @pytest.mark.parametrize("name", ["stream-0", "stream-1", "progress.jsonl"])
    def test_half_a_save_is_cut_off(self, out, interrupted, name):
        with (interrupted / name).open("ab") as file:
            file.write(b"[[")
        assert resume(out) == [3]

    @pytest.mark.parametrize("n_lines", [0, 1, 2])
    @pytest.mark.parametrize("name", ["stream-0", "stream-1", "progress.jsonl"])
    def test_lost_results_are_computed_again(self, out, interrupted, name, n_lines):
        """As after a power failure, in which the last writes to one of the files are lost."""
        sizes = [0, len(TEXTS[0]), len(TEXTS[0] + TEXTS[1])]
        lines = (interrupted / "progress.jsonl").read_bytes().splitlines(keepends=True)
        kept = {
            "stream-0": sizes[n_lines] + 1,
            "stream-1": n_lines,
            "progress.jsonl": len(b"".join(lines[:n_lines])) + 1,
        }
        os.truncate(interrupted / name, kept[name])
        assert resume(out) == [n_lines][: n_lines > 0]

    def test_an_interruption_saves_the_results_so_far(self, out):
        with pytest.raises(KeyboardInterrupt):
            run_job(make_job(stop=3, error=KeyboardInterrupt), out)
        assert len(saves(partial_folder(out))) == 1
        assert resume(out) == [3]

    @pytest.mark.parametrize("n_calls", range(1, 9))
    def test_an_interruption_during_a_save(self, out, monkeypatch, n_calls):
        monkeypatch.setattr(resumable, "SAVE_SECONDS", 0)
        calls, fsync = [], os.fsync

        def interrupt(descriptor):
            calls.append(descriptor)
            if len(calls) == n_calls:
                raise Interrupted
            fsync(descriptor)

        with monkeypatch.context() as patch, pytest.raises(Interrupted):
            patch.setattr(os, "fsync", interrupt)
            run_job(make_job(), out)
        resume(out)

    def test_an_input_that_is_repaired_has_not_changed(self, out, monkeypatch):
        """Results of a file that cannot be read to its end are not kept."""
        monkeypatch.setattr(resumable, "SAVE_SECONDS", 0)
        texts = [Step(Position(1, 0, 1), 1, Results((TEXTS[0], b"x")))]
        texts += [Step(Position(1, 1, 2), "broken", Results((b"of it", b"x")))]

        def steps(position):
            yield from texts
            raise UnreadableFileError("broken")

        with pytest.raises(UnreadableFileError):
            run_job(make_job(steps=steps), out)
        assert resume(out) == [1]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"settings": {"n": 1}}, "`n` was not given, is 1; undo the change"),
        ({"settings": {"the model": 1}}, "the model has changed; undo the change"),
        ({"stamps": (1, 9, 3, 4)}, "input 1 has changed; undo"),
        ({"stamps": (1, 2)}, "input 2 has changed; undo"),
    ],
)
def test_changes_are_named_and_keep_the_results(out, interrupted, changes, told):
    before = saves(interrupted)
    with pytest.raises(InvalidArgumentError, match=told):
        run_job(make_job(**changes), out)
    assert saves(interrupted) == before
    if len(changes.get("stamps", (1, 2, 3, 4))) == 4 and "stamps" not in changes:
        assert resume(out, make_job(**changes), force=True) == [[told.split(";")[0]]]


def test_an_input_that_changes_during_the_job_is_named(out):
    stamps = [1, 2, 3, 4]

    def change(*_):
        stamps[0] = 9

    job = make_job(stamps=stamps)
    job = replace(job, stamps=lambda n: stamps[:n])
    with pytest.raises(GPT2NPError, match="input 0 has changed while it was read"):
        run_job(job, out, JobCallbacks(on_progress=change))
    assert not out.exists()


def test_the_folder_of_a_linked_output_is_beside_its_target(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "x.bin").symlink_to(tmp_path / "disk" / "y.bin")
    assert partial_folder(tmp_path / "x.bin") == tmp_path / "disk" / "y.bin.partial"
