"""`--weights int8` of each command: the results are those of `load(…, weights="int8")`."""

import json
import subprocess
import sys

import pytest
from helpers.command_line import run_here
from helpers.server import running_server

import gpt2np
from gpt2np.distributed.jobs import ModelArguments
from gpt2np.runtime.options import ModelOptions

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


def test_chat(int8):
    command = [sys.executable, "-m", "gpt2np", "chat", *INT8, "--greedy", "-n", "30"]
    result = subprocess.run(command, input="The fox\n", capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert int8.generate("The fox", **GREEDY).text.strip() in result.stdout


def test_serve(int8, tmp_path):
    httpx = pytest.importorskip("httpx")
    pytest.importorskip("fastapi")
    with running_server(tmp_path, *INT8) as server:
        body = {"prompt": "The fox", "max_tokens": 30, "temperature": 0}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
    assert answer["choices"][0]["text"] == int8.generate("The fox", **GREEDY).text


@pytest.mark.slow
def test_bench():
    command = ["bench", "bundled", "--weights", "int8", "--quick", "--json"]
    result = run_here(*command)
    content = json.loads(result.stdout)
    assert content["weights"] == "int8" and content["dtype"] == "float32"
    assert content["memory"]["weights"] < 0.3 * 4 * content["parameters"]


def test_info_tells_the_memory_of_each_form(int8, lm):
    memory = json.loads(run_here("info", "bundled", "--json").stdout)["memory"]
    assert memory["int8_weights"] == int8.model.weights.nbytes < 0.3 * lm.model.weights.nbytes
    assert memory["float32_weights"] == lm.model.weights.nbytes
    lines = run_here("info", "bundled").stdout.splitlines()
    assert f"  int8_weights                    {memory['int8_weights']:,}" in lines


def test_a_worker_of_a_cluster_loads_the_same():
    source = ModelArguments(ModelOptions("bundled", weights="int8"))
    assert source.load().model.weight_dtype == "int8"


def test_other_values_are_refused():
    result = run_here("generate", "The fox", "--model", "bundled", "--weights", "int4")
    assert result.returncode == 2 and "--weights" in result.stderr and "'int4'" in result.stderr
    assert len(result.stderr.splitlines()) == 1
