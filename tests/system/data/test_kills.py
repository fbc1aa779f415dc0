"""`score`, `encode`, `batch` and `train`, killed and run again: the bytes of a whole run."""

import json
import random
import subprocess

import numpy as np
import pytest
from helpers.kills import kill_at_random, kill_when, run_to_the_end
from helpers.parts import saves
from helpers.patched_cli import small_steps

COMMAND, PAUSING = small_steps(0), small_steps(0.2)
TINY = "--n-layer 2 --n-head 2 --n-embd 32 --n-positions 32 --per-device-train-batch-size 4"
TRAINING = (
    f"{TINY} --max-steps 30 --warmup-steps 5 --save-steps 4 --gradient-accumulation-steps 2 "
    "--eval-steps 15 --eval-corpus ids.bin"
)


@pytest.fixture
def arguments(data, tmp_path):
    """Return a function that makes a command's arguments, with 6 to 15 steps."""
    stories = (data / "stories" / "valid.txt").read_text(encoding="utf-8")
    starts = random.Random(1).sample(range(len(stories) - 3000), 15)
    texts = [stories[start : start + 5 + start % 900] for start in starts]
    for name, field in (("texts", "text"), ("prompts", "prompt")):
        lines = (json.dumps({field: text[:300] if field == "prompt" else text}) for text in texts)
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    (tmp_path / "stories.txt").write_text(stories[:400_000])
    np.arange(2560, dtype=np.uint16).tofile(tmp_path / "ids.bin")

    def make(command, out, program=COMMAND):
        inputs = {
            "score": ["texts.jsonl", "--tokens", "--out"],
            "encode": ["stories.txt"],
            "batch": ["prompts.jsonl", "-n", "6", "--seed", "3", "--out"],
            "train": [*TRAINING.split(), "ids.bin"],
        }[command]
        return [*program, command, *inputs, out, "--model", "bundled"]

    return make


JOBS = [
    ("score", "o.jsonl"),
    ("encode", "o.npz"),
    ("batch", "o.jsonl"),
    ("train", "model"),
    ("score", "o.parquet"),
    ("score", "o.csv"),
    ("encode", "o.bin"),
    ("batch", "o.parquet"),
]


@pytest.fixture(params=JOBS, ids=str)
def job(request, arguments, tmp_path, monkeypatch):
    """(command, pausing command, its output, the output of a whole run)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    command, out = request.param
    whole = tmp_path / f"whole-{out}"
    subprocess.run(arguments(command, whole.name), check=True)
    yield arguments(command, out), arguments(command, out, PAUSING), tmp_path / out, whole


@pytest.mark.parametrize("job", JOBS[:4], indirect=True, ids=str)
def test_killed_after_some_results_were_saved(job):
    command, pausing, out, whole = job
    partial = out.with_name(f"{out.name}.partial")
    is_training = out.name == "model"
    kill_when(
        pausing, (partial / "state.npz").exists if is_training else lambda: len(saves(partial)) > 2
    )
    run_to_the_end(command, out, whole)


@pytest.mark.slow
def test_killed_at_ten_random_moments(job):
    command, pausing, out, whole = job
    kill_at_random(pausing, out, whole, 10, 2.5)
    run_to_the_end(command, out, whole)
