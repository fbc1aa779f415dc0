"""`gpt2np convert` as a user runs it."""

import json
import signal
import subprocess

import pytest
from helpers.command_line import run_here
from helpers.patched_cli import SLOW_CONVERSION
from helpers.processes import wait_while_running


def test_a_converted_model_writes_the_same_text(tmp_path):
    result = run_here("convert", "bundled", tmp_path / "b", "--dtype", "float32")
    assert (result.returncode, result.stdout) == (0, f"{tmp_path / 'b'}\n")
    assert result.stderr == ""
    prompt = ("generate", "The fox", "-n", "40", "--greedy", "--no-echo", "--model")
    assert run_here(*prompt, tmp_path / "b").stdout == run_here(*prompt, "bundled").stdout


def test_what_belongs_to_a_model_is_copied(tmp_path, bundled):
    target = tmp_path / "b"
    assert run_here("convert", "bundled", target).stdout == f"{target}\n"
    for name in ("vocab.json", "merges.txt", "generation_config.json"):
        assert (target / name).read_bytes() == (bundled / name).read_bytes()
    assert json.loads(run_here("info", target, "--json").stdout)["parameters"] == 5_918_720


def test_openais_names_of_the_vocabulary(tmp_path, bundled):
    source = tmp_path / "a"
    source.mkdir()
    names = {"vocab.json": "encoder.json", "merges.txt": "vocab.bpe"}
    for file in ("config.json", "model.safetensors", *names):
        (source / names.get(file, file)).write_bytes((bundled / file).read_bytes())
    assert run_here("convert", source, tmp_path / "b").returncode == 0
    prompt = ("generate", "The fox", "-n", "5", "--greedy", "--no-echo", "--model")
    assert run_here(*prompt, tmp_path / "b").stdout == run_here(*prompt, "bundled").stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_or_killed_run_leaves_no_folder_that_looks_complete(tmp_path, number):
    command = [*SLOW_CONVERSION, "convert", "bundled", str(tmp_path / "b")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    wait_while_running(process, lambda: [*tmp_path.glob(".*.tmp/*")])
    process.send_signal(number)
    _, stderr = process.communicate(timeout=120)
    assert b"Traceback" not in stderr and not (tmp_path / "b").exists()
    if number == signal.SIGINT:
        assert process.returncode == 130 and list(tmp_path.iterdir()) == []
    assert run_here("convert", "bundled", tmp_path / "b").returncode == 0
    assert [path.name for path in tmp_path.iterdir() if path.name[0] != "."] == ["b"]


@pytest.mark.permissions
def test_a_source_that_cannot_be_read_is_named(tmp_path, bundled):
    (tmp_path / "a").mkdir()
    for file in bundled.iterdir():
        if file.is_file():
            (tmp_path / "a" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "a" / "vocab.json").chmod(0)
    result = run_here("convert", tmp_path / "a", tmp_path / "b")
    assert result.returncode == 1 and f"{tmp_path / 'a' / 'vocab.json'}" in result.stderr
    assert "cannot write" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
