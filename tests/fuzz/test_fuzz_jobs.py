"""Damaged folders of unfinished jobs: the file of an uninterrupted job, or an error of one line.

Foreign files, and files that links lead to, are never changed.
"""

import json
import os
import re
import shutil
import stat
from contextlib import suppress

import pytest
from helpers import mutations
from helpers.one_line import assert_one_line
from hypothesis import event, given
from hypothesis import strategies as st

from gpt2np import GPT2NPError
from gpt2np.data import resumable
from gpt2np.data.resumable import JobCallbacks
from gpt2np.prompts.job import continue_file
from gpt2np.tokenizer.dataset import encode_dataset

PROMPTS = [{"prompt": f"prompt {i}", "max_new_tokens": i % 5 + 1} for i in range(12)]
INPUTS = {
    "out.jsonl": {"prompts.jsonl": "".join(json.dumps(prompt) + "\n" for prompt in PROMPTS)},
    "out.npz": {f"{i}.txt": f"Text {i}. " * i for i in range(1, 9)},
}
OWN_NAMES = ("task.json", "lock", "new", "output")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of all jobs: for `encode`, the paths of the input are a part of the job."""
    return tmp_path_factory.mktemp("work") / "job"


@pytest.fixture(scope="module")
def run_job(byte_lm, folder):
    """run_job(name, callbacks, force): run the job that writes the file `name`."""

    def run(name, callbacks=None, force=False):
        callbacks = callbacks or JobCallbacks()
        files = [folder / file for file in INPUTS[name]]
        if name == "out.jsonl":
            options = {"seed": 1}
            out = folder / name
            continue_file(byte_lm, *files, out, options, callbacks, force=force)
        else:
            tokenizer = byte_lm.tokenizer
            encode_dataset(files, folder / name, tokenizer, None, callbacks, force=force)

    return run


@pytest.fixture(scope="module")
def jobs(tmp_path_factory, folder, run_job):
    """Triples of a job's name, a copy of its folder after an interruption, and its result."""
    triples = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resumable, "PART_SECONDS", 0)
        for name, inputs in INPUTS.items():
            folder.mkdir()
            for file, text in inputs.items():
                (folder / file).write_text(text)
            run_job(name)
            expected = (folder / name).read_bytes()
            for n_calls in (1, 2, 3):
                (folder / name).unlink(missing_ok=True)
                with pytest.raises(KeyboardInterrupt):
                    run_job(name, JobCallbacks(on_progress=interrupt_after(n_calls)))
                saved = tmp_path_factory.mktemp("saved") / "job"
                shutil.copytree(folder, saved)
                triples.append((name, saved, expected))
                shutil.rmtree(folder / f"{name}.partial")
            shutil.rmtree(folder)
    return triples


def interrupt_after(n_calls):
    calls = []

    def callback(*_):
        calls.append(1)
        if len(calls) == n_calls:
            raise KeyboardInterrupt

    return callback


def damage(partial, foreign, rng):
    """Change one file of the folder `partial`, or replace the file by a link to `foreign`."""
    file = partial / rng.choice([*OWN_NAMES, *sorted(file.name for file in partial.iterdir())])
    kind = rng.choice(
        ["bytes", "bytes", "bytes", "json", "json", "text", "remove", "link", "other"]
    )
    event(kind)
    is_own = file.is_file() and not file.is_symlink()
    content = file.read_bytes() if is_own else b""
    if kind == "bytes" and content:
        names = ("flip_byte", "cut", "insert", "remove", "exchange")
        file.write_bytes(getattr(mutations, rng.choice(names))(content, rng))
    elif kind == "json" and is_own and file.name == "task.json":
        lines = content.splitlines() or [b"{}"]
        with suppress(ValueError, IndexError, KeyError):
            index = rng.randrange(len(lines))
            parsed = json.loads(lines[index])
            mutations.change_json(parsed, rng)
            lines[index] = mutations.json_text(parsed, rng)
        file.write_bytes(b"\n".join(lines) + b"\n")
    elif kind == "text" and (is_own or not os.path.lexists(file)):
        other = partial / rng.choice(OWN_NAMES)
        text = other.read_bytes() if other.is_file() else b"x"
        file.write_bytes(rng.choice([b"", b"\n", b"null\n", b"[1]\n", content * 2, text]))
    elif kind in ("remove", "link", "other"):
        if file.is_dir() and not file.is_symlink():
            return
        file.unlink(missing_ok=True)
        target = rng.choice([foreign / "letter", foreign / "photos", foreign / "missing"])
        if kind == "link":
            file.symlink_to(target)
        elif kind == "other":
            make = rng.choice([os.mkfifo, os.mkdir, lambda path: os.link(foreign / "letter", path)])
            make(file)


@given(rng=st.randoms())
def test_jobs(folder, run_job, jobs, rng):
    name, saved, expected = jobs[rng.randrange(len(jobs))]
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(saved, folder)
    foreign = folder.with_name("foreign")
    shutil.rmtree(foreign, ignore_errors=True)
    (foreign / "photos").mkdir(parents=True)
    (foreign / "photos" / "lines").write_text("photo")
    (foreign / "letter").write_text("letter")
    partial = folder / f"{name}.partial"
    for _ in range(rng.choice([1, 1, 2, 4])):
        damage(partial, foreign, rng)
    if rng.randrange(20) == 0:
        shutil.rmtree(partial)
        partial.symlink_to(rng.choice([foreign, foreign / "letter", foreign / "missing"]))
    before = read_tree(foreign)
    names = re.compile(rf"{'|'.join(OWN_NAMES)}|part-\d{{8,}}-[0-9a-f]{{8}}")
    strangers = [file for file in partial.glob("*") if not names.fullmatch(file.name)]
    for force in (False, True):
        try:
            run_job(name, force=force)
        except GPT2NPError as error:
            event("refused")
            assert_one_line(error)
        else:
            event("resumed")
            assert (folder / name).read_bytes() == expected
            break
        finally:
            assert read_tree(foreign) == before
            assert all(map(os.path.lexists, strangers))


def read_tree(folder):
    """Return the content, or the kind, of every file in a folder."""
    files = sorted(folder.rglob("*"))
    return {
        file: file.read_bytes() if file.is_file() else stat.S_IFMT(file.lstat().st_mode)
        for file in files
    }
