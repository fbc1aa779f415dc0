"""`gpt2np bench` as a user runs it; nothing here depends on how fast the machine is."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from helpers.command_line import run_here
from helpers.patched_cli import one_run, report_handler
from helpers.random_models import random_model

from gpt2np import Tokenizer
from gpt2np.benchmark.suite import suite_text
from gpt2np.kernels.blas import describe_kernels, small_kernels
from gpt2np.kernels.cpus import usable_cpus
from gpt2np.kernels.threads import THREAD_VARIABLES, thread_count
from gpt2np.runtime.ranks import max_processes

COMMAND = [sys.executable, "-m", "gpt2np", "bench"]


def bench(*arguments, **options):
    """Run the command in a process of its own, as its measurements need."""
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, encoding="utf-8", timeout=120, **options
    )


@pytest.fixture(scope="module")
def content():
    result = bench("bundled", "--quick", "--json", "--threads", "1")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def test_the_table(content):
    lines = suite_text(content).splitlines()
    assert lines[0] == "bundled: 5.9 million parameters, float32, context 512"
    assert any(line.startswith("BLAS ") and line.endswith("1 thread") for line in lines)
    assert f"kernels   {describe_kernels()}" in lines
    assert any(re.fullmatch(r"limits    reads .* GB/s .*, multiplies .* GFLOP/s", x) for x in lines)
    names = "prefill|decode|batch|one call|text|start|memory"
    table = [line for line in lines if re.match(f"({names})  ", line)]
    assert len(table) == 14
    assert sum("% of this machine's limit" in line for line in table) == 5
    ends = {re.search(r"\d (tokens/s|MB|ms|s)(?= |$)", line).start() for line in table}
    assert len(ends) == 1  # the units stand below one another
    assert max(map(len, lines)) <= 110 and not any(line.endswith(" ") for line in lines)


class TestJson:
    def test_what_was_measured_where(self, content):
        assert content["model"] == "bundled" and content["parameters"] == 5_918_720
        assert content["dtype"] == "float32" and content["config"]["n_positions"] == 512
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d", content["date"])
        machine = content["machine"]
        assert machine["threads"] == 1 and machine["cpus"] >= 1
        assert machine["kernels"] == describe_kernels()
        assert all(machine[name] for name in ("cpu", "system", "python", "numpy", "gpt2np", "blas"))

    def test_limits(self, content):
        per_token = 4 * (6 * 12 * 256**2 + 4096 * 256)
        assert content["weight_bytes_per_token"] == per_token == content["limits"]["bytes_read"]
        limit = content["limits"]["bytes_per_second"] / per_token
        assert all(speed["limit"] == pytest.approx(limit) for speed in content["decode"])
        assert content["limits"]["flops_per_second"] > 1e6

    def test_speeds(self, content):
        assert [speed["tokens"] for speed in content["prefill"]] == [64, 512]
        assert [speed["context"] for speed in content["decode"]] == [64, 256, 511]
        for speed in content["prefill"] + content["decode"]:
            rate = speed["tokens"] / speed["seconds"]
            assert speed["tokens_per_second"] == pytest.approx(rate)
            assert speed["of_limit"] == pytest.approx(rate / speed["limit"])
            assert 0 < speed["fastest"] <= speed["seconds"] <= speed["slowest"]
            assert speed["runs"] >= 1

    def test_several_at_once(self, content):
        assert [speed["sequences"] for speed in content["batch"]] == [2, 4, 8, 16]
        together = content["several_tokens"]
        assert (together["tokens"], together["context"]) == (8, 200)
        for speed in [*content["batch"], together]:
            number = speed["tokens"] * speed["sequences"]
            assert speed["tokens_per_second"] == pytest.approx(number / speed["seconds"])
            times = speed["seconds_times_of_one"] * speed["speed_times_of_one"]
            assert times == pytest.approx(number)

    def test_text(self, content):
        text = content["text"]
        assert text["tokens"] == 100 and text["with_drafts"]["runs"] == 1
        ratio = text["without_drafts"]["seconds"] / text["with_drafts"]["seconds"]
        assert text["speedup"] == pytest.approx(ratio)

    def test_processes(self, content):
        assert content["start"]["seconds"] > 0 and content["start"]["runs"] == 1
        memory = content["memory"]
        assert memory["weights"] == 4 * 5_918_720 and memory["kv_cache"] == 2 * 6 * 512 * 256 * 4
        if memory["peak"] is not None:
            assert memory["weights"] + memory["kv_cache"] < memory["peak"] < 500e6


@pytest.mark.skipif(os.name == "nt", reason="there are no pseudo-terminals")
def test_the_progress_and_the_choices_of_processes(bundled, tmp_path):
    """With --processes auto, the table has a line for each number of tokens."""
    import pty
    import termios

    shape = {"n_embd": 32, "n_head": 2, "n_layer": 1, "n_positions": 512}
    random_model(vocab_size=4096, **shape).save(tmp_path)
    Tokenizer.load(bundled).save(tmp_path)
    ours, theirs = pty.openpty()
    if hasattr(termios, "tcsetwinsize"):
        termios.tcsetwinsize(theirs, (24, 80))
    seen = []

    def listen():
        try:
            while part := os.read(ours, 4096):
                seen.append(part)
        except OSError:  # closed at the other end
            pass

    listener = threading.Thread(target=listen)
    listener.start()
    arguments = ["bench", str(tmp_path), "--quick", "--threads", "2", "--processes", "auto"]
    result = subprocess.run([*one_run(), *arguments], stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    listener.join()
    table = result.stdout.decode()
    choices = re.findall(r"^processes  (\d+).* processes and times: 1: ", table, re.MULTILINE)
    if max_processes() == 1 or thread_count() == 1:
        assert not choices
    else:
        # Prompts may be too few for a choice. Without small-matrix kernels, ranks share at most
        # seven tokens.
        assert ({"1", "2", "5"} if small_kernels() else {"1", "2"}) <= {*choices}
    if hasattr(termios, "tcsetwinsize"):
        progress = b"".join(seen).decode()
        assert "decode at context 256" in progress and "12 of 12" in progress
        assert progress.split("\r")[-2].isspace()  # the line is left empty


class TestWrongUse:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["bundled", "--threads", "0"], "--threads is 0; it must be at least 1"),
            (["bundled", "--threads", "x"], "invalid int value"),
            (["bundled", "--dtype", "float16"], "invalid choice: 'float16'"),
            (["bundled", "other"], "unrecognized argument 'other'"),
            (["bundled", "--fast"], "unrecognized option '--fast'"),
        ],
    )
    def test_one_line_and_exit_code_2(self, arguments, message):
        result = run_here("bench", *arguments)
        assert (result.returncode, result.stdout) == (2, "")
        assert message in result.stderr and result.stderr.count("\n") == 1

    def test_no_such_model(self, tmp_path):
        result = run_here("bench", str(tmp_path / "nothing" / "at" / "all"))
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.startswith("gpt2np bench: error: ") and result.stderr.count("\n") == 1


@pytest.mark.skipif(os.name == "nt", reason="signals work otherwise there")
@pytest.mark.parametrize("delay", [0.0, 0.6, pytest.param(1.8, marks=pytest.mark.slow)])
def test_ctrl_c_leaves_no_traceback(delay):
    command = [*report_handler(), "bench", "bundled"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stderr.readline() == b"ready\n"
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == (b"", b"") and process.returncode == 130


def test_help_does_without_numpy_and_fits_80_columns(tmp_path):
    (tmp_path / "numpy.py").write_text("raise ImportError('not here')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    result = bench("--help", env=os.environ | {"COLUMNS": "80", "PYTHONPATH": path})
    assert result.returncode == 0 and "--quick" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("set_to", "expected"),
    [({}, None), ({"OMP_NUM_THREADS": "1"}, 1), ({"OPENBLAS_NUM_THREADS": "x"}, None)],
)
def test_threads_are_those_of_the_environment(set_to, expected, monkeypatch):
    for variable in THREAD_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    for variable, value in set_to.items():
        monkeypatch.setenv(variable, value)
    assert thread_count() == (expected or usable_cpus())


class TestProcesses:
    def test_a_number(self, content):
        assert content["processes"] == 1  # with --threads 1
        assert content["rank_choices"] == []

    @pytest.mark.parametrize("wrong", ["0", "-1", "many", "1.5"])
    def test_wrong(self, wrong):
        result = run_here("bench", "bundled", f"--processes={wrong}")
        assert (result.returncode, result.stdout) == (2, "")
        assert f"'{wrong}' is neither auto nor a number from 1 on" in result.stderr
        assert result.stderr.count("\n") == 1
