"""`score`, `encode`, `batch` and `train`, killed and run again: the bytes of a whole run."""

import json
import os
import random
from functools import partial

import numpy as np
import pytest
from helpers.forked_command import forked_commands
from helpers.kills import check_the_end, kill_at_random, kill_when
from helpers.parts import saves
from helpers.patched_cli import patched_cli, small_steps

VARIABLES = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
TINY = "--n-layer 2 --n-head 2 --n-embd 32 --n-positions 32 --per-device-train-batch-size 4"
TRAINING = (
    f"{TINY} --max-steps 9 --warmup-steps 5 --save-steps 4 --gradient-accumulation-steps 2 "
    "--eval-steps 7 --eval-corpus ids.bin"
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

    def make(command, out):
        inputs = {
            "score": ["texts.jsonl", "--tokens", "--out"],
            "encode": ["stories.txt"],
            "batch": ["prompts.jsonl", "-n", "6", "--seed", "3", "--out"],
            "train": [*TRAINING.split(), "ids.bin"],
        }[command]
        return [command, *inputs, out, "--model", "bundled"]

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


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run a command to its end, with small steps."""
    with forked_commands(tmp_path_factory.mktemp("forked"), VARIABLES) as forked:
        yield lambda arguments: forked.run(arguments, VARIABLES, small_steps(0))


@pytest.fixture(params=JOBS, ids=str)
def job(request, arguments, run, tmp_path, monkeypatch):
    """(a function that runs a command, pausing command, its output, the output of a whole run)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    command, out = request.param
    whole = tmp_path / f"whole-{out}"
    assert run(arguments(command, whole.name)).returncode == 0
    command = arguments(command, out)
    yield partial(run, command), [*patched_cli(small_steps(0.2)), *command], tmp_path / out, whole


@pytest.mark.parametrize("job", JOBS[:4], indirect=True, ids=str)
def test_killed_after_some_results_were_saved(job):
    run, pausing, out, whole = job
    unfinished = out.with_name(f"{out.name}.partial")
    is_training = out.name == "model"
    kill_when(
        pausing,
        (unfinished / "state.npz").exists if is_training else lambda: len(saves(unfinished)) > 2,
    )
    check_the_end(run(), out, whole)


@pytest.mark.slow
def test_killed_at_ten_random_moments(job):
    run, pausing, out, whole = job
    kill_at_random(pausing, out, whole, 10, 2.5)
    check_the_end(run(), out, whole)
