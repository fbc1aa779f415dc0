"""`--weights int8` of each command: the results are those of `load(…, weights="int8")`."""

import json

import pytest
from helpers.command_line import run_here

import gpt2np

STORY = "The fox went home. Then he lay down and slept, as a fox does, until the sun was up. " * 3
INT8 = ["--model", "bundled", "--weights", "int8"]
GREEDY = {"max_new_tokens": 30, "temperature": 0}


@pytest.fixture(scope="module")
def int8():
    return gpt2np.load("bundled", weights="int8")


def test_generate(int8):
    result = run_here("generate", "The fox", *INT8, "-n", "30", "--greedy", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["text"] == int8.generate("The fox", **GREEDY).text


def test_score(int8, tmp_path):
    (tmp_path / "a.txt").write_text(STORY)
    result = run_here("score", tmp_path / "a.txt", "--out", tmp_path / "o.jsonl", *INT8)
    assert result.returncode == 0, result.stderr
    [line] = (tmp_path / "o.jsonl").read_text().splitlines()
    assert json.loads(line)["log_probability"] == pytest.approx(int8.score(STORY).total, rel=1e-6)
