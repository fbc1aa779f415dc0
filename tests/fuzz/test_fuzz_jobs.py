"""Jobs whose last writes are lost: the file of an uninterrupted job."""

import json
import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2np.data import resumable
from gpt2np.data.resumable import JobCallbacks
from gpt2np.prompts import continue_file
from gpt2np.tokenizer.dataset import encode_dataset

PROMPTS = [{"prompt": f"prompt {i}", "max_new_tokens": i % 5 + 1} for i in range(12)]
INPUTS = {
    "out.jsonl": {"prompts.jsonl": "".join(json.dumps(prompt) + "\n" for prompt in PROMPTS)},
    "out.npz": {f"{i}.txt": f"Text {i}. " * i for i in range(1, 9)},
}


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
        patch.setattr(resumable, "SAVE_SECONDS", 0)
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


@given(rng=st.randoms())
def test_jobs(folder, run_job, jobs, rng):
    name, saved, expected = jobs[rng.randrange(len(jobs))]
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(saved, folder)
    partial = folder / f"{name}.partial"
    for file in partial.glob("*"):
        if file.name == "progress.jsonl" or file.name.startswith("stream"):
            if rng.random() < 0.5:
                os.truncate(file, rng.randint(0, file.stat().st_size))
            else:
                with file.open("ab") as stream:
                    stream.write(rng.choice([b"", b"[[1, ", b"half"]))
    run_job(name)
    assert (folder / name).read_bytes() == expected
    assert not partial.exists()
