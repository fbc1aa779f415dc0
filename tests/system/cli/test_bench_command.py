"""`gpt2np bench` as a user runs it; nothing here depends on how fast the machine is."""

import json

import pytest
from helpers.command_line import run_here


@pytest.fixture(autouse=True)
def measured_once(monkeypatch):
    from gpt2np.benchmark import machine, suite

    time_runs = machine.time_runs
    for module in (machine, suite):
        monkeypatch.setattr(module, "time_runs", lambda work, seconds: time_runs(work, 0.0))
    monkeypatch.setattr(machine, "_MATMUL_SIZE", 256)


def test_bench_prints_twelve_lines_or_one_json_object():
    result = run_here("bench", "bundled", "--quick", "--json")
    assert result.stdout.count("\n") == 1
    content = json.loads(result.stdout)
    assert content["model"] == "bundled" and len(content["speeds"]) == 5
    assert content["weights"] == 4 * 5_918_720
    # Last: a process keeps the number of threads of its first pass, here that of other tests.
    result = run_here("bench", "bundled", "--quick", "--threads", "1")
    assert (result.returncode, result.stderr) == (0, "model: bundled\n")
    lines = result.stdout.splitlines()
    assert len(lines) == 12 and lines[0].startswith("model    bundled: 6 blocks, ")
    assert lines[3].endswith("1 thread")
