"""`score`, `encode` and `batch`, killed ten times: the bytes of a whole run."""

import json
import random
import subprocess

import pytest
from helpers.kills import kill_at_random
from helpers.patched_cli import small_steps

COMMAND = small_steps(0.05)


@pytest.fixture
def arguments(data, tmp_path):
    """Return a function that makes a command's arguments, with about 30 steps."""
    stories = (data / "stories" / "valid.txt").read_text(encoding="utf-8")
    starts = random.Random(1).sample(range(len(stories) - 3000), 160)
    texts = [stories[start : start + 5 + start % 1100] for start in starts]
    for name, field in (("texts", "text"), ("prompts", "prompt")):
        lines = (json.dumps({field: text[:300] if field == "prompt" else text}) for text in texts)
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    (tmp_path / "stories.txt").write_text(stories + stories)

    def make(command, out):
        inputs = {
            "score": ["texts.jsonl", "--tokens", "--out"],
            "encode": ["stories.txt"],
            "batch": ["prompts.jsonl", "-n", "12", "--seed", "3", "--out"],
        }[command]
        return [*COMMAND, command, *inputs, out, "--model", "bundled"]

    return make


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "out", "options"),
    [
        ("score", "o.jsonl", []),
        ("score", "o.parquet", []),
        ("score", "o.csv", []),
        ("encode", "o.bin", []),
        ("encode", "o.npz", []),
        ("encode", "o.parquet", []),
        ("batch", "o.jsonl", []),
        ("batch", "o.parquet", []),
    ],
)
def test_killed_ten_times(arguments, tmp_path, monkeypatch, command, out, options):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    whole = tmp_path / f"whole-{out}"
    subprocess.run([*arguments(command, whole.name), *options], check=True)
    kill_at_random([*arguments(command, out), *options], tmp_path / out, whole, 10, 2.5)
