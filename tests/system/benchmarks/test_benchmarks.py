"""The benchmark programs run; no test asserts a time."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from helpers.paths import CHECKOUT

COMPARE = CHECKOUT / "benchmarks" / "compare.py"


@pytest.mark.slow
def test_compare_measures_reports_and_says_what_it_skips(tmp_path):
    engines = ["gpt2np", "transformers", "llama.cpp"]
    command = [sys.executable, str(COMPARE), "--shape", "tiny", "--rounds", "1"]
    command += ["--engines", *engines, "--only", "decode", "--work", str(tmp_path)]
    found = tmp_path / "results.json"
    variables = os.environ | {"OPENBLAS_CORETYPE": "Haswell"}
    done = subprocess.run(
        [*command, "--json", str(found)], capture_output=True, encoding="utf-8", env=variables
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(found.read_text(encoding="utf-8"))
    for engine in ("gpt2np", "transformers"):
        values = results["values"][engine]
        assert all(len(values[work]) == 1 for work in ("decode at 64", "decode at 900"))
        assert all(value > 0 for (value,) in values.values())
        assert results["difference"][engine] < 1e-4
    assert "| decode at 64, tokens/s |" in done.stdout
    assert "| decode at 64 |" in done.stdout  # a ratio
    left_out = done.stdout.split("left out: ")[1].split(".\n")[0]
    assert "OPENBLAS_CORETYPE=Haswell" in left_out.split(", ")
    if "llama.cpp" in results["skipped"]:
        assert "- llama.cpp is skipped: " in done.stdout


def test_compare_runs_another_checkout_in_turns_with_this_one(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(COMPARE.parent)
    import compare_models  # compare.py would import torch for it in another process

    monkeypatch.setenv("GPT2NP_TEST_DATA", str(tmp_path / "none"))
    monkeypatch.setattr(compare_models, "VOCABULARY", tmp_path / "none")
    compare_models.make_weights(tmp_path / "tiny-without-vocabulary", "tiny")
    old = tmp_path / "old"
    shutil.copytree(CHECKOUT / "gpt2np", old / "gpt2np", ignore=shutil.ignore_patterns("*.pyc"))
    found = tmp_path / "results.json"
    command = [sys.executable, str(COMPARE), "--shape", "tiny", "--rounds", "1", "--only", "decode"]
    command += ["--engines", "gpt2np", "--old", str(old), "--work", str(tmp_path)]
    done = subprocess.run(
        [*command, "--json", str(found)], capture_output=True, encoding="utf-8", cwd=CHECKOUT
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(found.read_text(encoding="utf-8"))
    assert list(results["values"]) == ["gpt2np", "gpt2np (old)"] and not results["skipped"]
    assert all(values["decode at 64"] for values in results["values"].values())
    assert ": gpt2np ÷ | gpt2np (old) |" in done.stdout  # after the processor's name


def test_compare_refuses_what_is_no_checkout(tmp_path):
    command = [sys.executable, str(COMPARE), "--old", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert done.returncode == 2
    assert "is no checkout: it has no folder gpt2np" in done.stderr


def test_serving_measures_a_server():
    for package in ("fastapi", "uvicorn", "prometheus_client"):
        pytest.importorskip(package)
    code = "import serving as s; s.WARM_UP, s.PAUSE = 1, 0; s.main()"  # else 16, 1 s
    command = [sys.executable, "-c", code, "--tokens", "20", "--streams", "2", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=COMPARE.parent)
    assert done.returncode == 0, done.stderr
    *_, row = done.stdout.splitlines()
    _, streams, server, rate, *times, _ = row.split("|")
    assert (streams.strip(), server.strip(), len(times)) == ("2", "gpt2np", 4)
    assert float(rate.split()[0]) > 0
    assert all(float(time) > 0 for time in times)


def test_int8_compares_the_forms_of_a_model(tmp_path):
    text = tmp_path / "text"
    text.write_text("Once upon a time there was a little dog. " * 20)
    command = [sys.executable, str(COMPARE.with_name("int8.py")), str(text), "--tokens", "150"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    rows = [row.split(" | ") for row in done.stdout.splitlines()[4:]]
    divergences = {name: float(divergence) for name, _, divergence, _ in rows}
    assert divergences["| float32"] == 0
    assert 0 < divergences["| bfloat16"] < divergences["| int8"] < 0.01
