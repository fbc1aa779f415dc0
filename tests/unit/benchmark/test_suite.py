"""The measurements of `gpt2np bench` and their report, on a tiny model."""

import json
import subprocess
import sys

import pytest
from helpers.random_models import random_model

from gpt2np.benchmark.counts import prefill_flops, weight_bytes_per_token
from gpt2np.benchmark.machine import peak_memory
from gpt2np.benchmark.suite import report, run_benchmark


@pytest.fixture(scope="module")
def model():
    return random_model(n_embd=32, n_head=2, n_layer=2, n_positions=100)


@pytest.fixture(scope="module")
def results(model):
    return run_benchmark(model, 1, 0.0)


def test_speeds_are_tokens_by_seconds_and_shares_of_the_limits(model, results):
    names = ["prompt of 64 tokens", "prompt of 100 tokens", "one text"]
    names += ["4 texts at a time", "16 texts at a time"]
    assert [speed["name"] for speed in results["speeds"]] == names
    for speed in results["speeds"]:
        rate = speed["tokens"] / speed["seconds"]
        assert speed["tokens_per_second"] == pytest.approx(rate)
    limits, (prompt, _, one, *batches) = results["limits"], results["speeds"]
    most = 64 * limits["flops_per_second"] / prefill_flops(model.config, 64)
    assert prompt["share_of_limit"] == pytest.approx(prompt["tokens_per_second"] / most)
    most = limits["bytes_per_second"] / weight_bytes_per_token(model.config)
    assert one["share_of_limit"] == pytest.approx(one["tokens_per_second"] / most)
    assert not any("share_of_limit" in batch for batch in batches)


def test_the_results_are_json_and_a_report_of_twelve_lines(model, results):
    json.dumps(results)
    lines = report("tiny", results).splitlines()
    assert len(lines) == 12 and max(map(len, lines)) <= 100
    assert sum("of this machine's limit" in line for line in lines) == 3
    assert lines[-1].endswith(f"with {model.weights.nbytes / 1e6:,.0f} MB of weights")


@pytest.mark.parametrize("n_positions", [1, pytest.param(40, marks=pytest.mark.slow)])
def test_a_short_context_is_measured(n_positions):
    model = random_model(n_embd=8, n_head=2, n_layer=1, n_positions=n_positions)
    speeds = run_benchmark(model, 1, 0.0)["speeds"]
    assert speeds[0]["name"] == f"prompt of {n_positions} tokens" and len(speeds) == 4


@pytest.mark.skipif(peak_memory() is None, reason="this system does not report it")
def test_peak_memory_grows_by_what_is_written():
    """In a small process: this one may have used gigabytes."""
    names = "import numpy as np; from gpt2np.benchmark.machine import peak_memory as peak"
    program = f"{names}; print((array := np.ones(peak() // 4)).nbytes <= peak())"
    assert subprocess.check_output([sys.executable, "-c", program]) == b"True\n"
