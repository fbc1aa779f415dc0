"""`score`, `encode`, `batch` and `train`, killed at random moments: the bytes of a whole run."""

import json
import random
import subprocess

import numpy as np
import pytest
from helpers.kills import kill_at_random
from helpers.patched_cli import small_steps

COMMAND = small_steps(0.05)
TINY = "--n-layer 2 --n-head 2 --n-embd 32 --n-positions 32 --per-device-train-batch-size 4"
TRAINING = (
    f"{TINY} --max-steps 40 --warmup-steps 5 --save-steps 4 --gradient-accumulation-steps 2 "
    "--eval-steps 20 --eval-corpus ids.bin"
)


@pytest.fixture
def arguments(data, tmp_path):
    """Return a function that makes a command's arguments, with about 30 steps."""
    stories = (data / "stories" / "valid.txt").read_text(encoding="utf-8")
    starts = random.Random(1).sample(range(len(stories) - 3000), 60)
    texts = [stories[start : start + 5 + start % 1100] for start in starts]
    for name, field in (("texts", "text"), ("prompts", "prompt")):
        lines = (json.dumps({field: text[:300] if field == "prompt" else text}) for text in texts)
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    (tmp_path / "stories.txt").write_text(stories)
    np.arange(2560, dtype=np.uint16).tofile(tmp_path / "ids.bin")

    def make(command, out):
        inputs = {
            "score": ["texts.jsonl", "--tokens", "--out"],
            "encode": ["stories.txt"],
            "batch": ["prompts.jsonl", "-n", "12", "--seed", "3", "--out"],
            "train": [*TRAINING.split(), "ids.bin"],
        }[command]
        return [*COMMAND, command, *inputs, out, "--model", "bundled"]

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


@pytest.mark.parametrize(
    ("job", "n_kills"),
    [
        *((job, 1) for job in JOBS[:4]),
        *(pytest.param(job, 10, marks=pytest.mark.slow) for job in JOBS),
    ],
    ids=str,
)
def test_killed_at_random_moments(arguments, tmp_path, monkeypatch, job, n_kills):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    command, out = job
    whole = tmp_path / f"whole-{out}"
    subprocess.run(arguments(command, whole.name), check=True)
    kill_at_random(arguments(command, out), tmp_path / out, whole, n_kills, 2.5)
