"""Commands keep finished work and outputs of others."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from helpers.patched_cli import small_steps

PROGRAM = [sys.executable, "-m", "gpt2np"]
COMMANDS = {"score": ["score", "--out"], "encode": ["encode"]}


def paths(folder, command):
    """Return the paths of a job's input, and of its output beside a file of another."""
    suffix = ".jsonl" if command == "score" else ".bin"
    source, out = folder / "in" / "t.jsonl", folder / "out" / f"o{suffix}"
    for path in (source, out):
        path.parent.mkdir()
    (out.parent / "note").touch()
    return source, out


def start(command, source, out, program=PROGRAM):
    name, *before_out = COMMANDS[command]
    given = [*program, name, str(source), *before_out, str(out), "--model", "bundled"]
    return subprocess.Popen(given, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def saved(out):
    files = out.parent.glob("*.partial/progress.jsonl")
    return [file.read_bytes() for file in files if file.stat().st_size]


def wait_for_work(process, out):
    """Wait until a run has a file or folder for unfinished work beside its output."""
    while process.poll() is None and len([*out.parent.iterdir()]) < 2:
        time.sleep(0.01)
    assert process.poll() is None


def interrupt(process):
    process.send_signal(signal.SIGINT)
    message = process.communicate(timeout=60)[1]
    assert process.returncode == 130, message


def append(source):
    with source.open("a") as file:
        file.write('{"text": "more"}\n')


def write_documents(path, data, n_bytes):
    text = (data / "stories" / "train.txt").read_text(encoding="utf-8")[:n_bytes]
    texts = (text[start : start + 4000] for start in range(0, n_bytes, 4000))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


@pytest.mark.parametrize("command", COMMANDS)
def test_an_input_that_changed_is_named_and_no_result_is_lost(data, tmp_path, command):
    source, out = paths(tmp_path, command)
    write_documents(source, data, 3_000_000)
    process = start(command, source, out, program=small_steps(0.05))
    while not (before := saved(out)):
        assert process.poll() is None
        time.sleep(0.01)
    interrupt(process)
    before = saved(out)
    for change in (os.utime, append):
        change(source)
        process = start(command, source, out, program=small_steps(0.05))
        try:
            message = process.communicate(timeout=20)[1]
        finally:
            process.kill()
        assert process.returncode == 2 and "t.jsonl" in message and "--force" in message
        assert saved(out) == before and not out.exists()


@pytest.mark.parametrize(("command", "n_bytes"), [("score", 16_000), ("encode", 5_000_000)])
def test_an_output_that_appears_during_the_work_is_kept(data, tmp_path, command, n_bytes):
    source, out = paths(tmp_path, command)
    write_documents(source, data, n_bytes)
    process = start(command, source, out)
    wait_for_work(process, out)
    out.write_text("of another")
    message = process.communicate(timeout=120)[1]
    assert out.read_text() == "of another"
    assert process.returncode == 2 and "exists already" in message
