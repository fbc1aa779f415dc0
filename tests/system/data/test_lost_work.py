"""Commands keep finished work and outputs of others; small files do not unpack to gigabytes.

The tests use the command line only, so they can be run on earlier versions.
"""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

COMMANDS = {"score": ["score", "--out"], "encode": ["encode"]}


def start(command, source, out, *options):
    name, *before_out = COMMANDS[command]
    given = [name, str(source), *before_out, str(out), "--model", "bundled", *options]
    base = [sys.executable, "-m", "gpt2np", *given]
    return subprocess.Popen(base, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


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


@pytest.mark.parametrize("change", [os.utime, append], ids=["touch", "edit"])
@pytest.mark.parametrize("command", COMMANDS)
def test_an_input_that_changed_is_named_and_no_result_is_lost(data, tmp_path, command, change):
    source, out = tmp_path / "in" / "t.jsonl", tmp_path / "out" / "o"
    out = out.with_suffix(".jsonl" if command == "score" else ".bin")
    for path in (source, out):
        path.parent.mkdir()
    write_documents(source, data, 30_000_000)
    (out.parent / "note").touch()
    for seconds in (1, 5, 20):  # until there are results
        process = start(command, source, out)
        wait_for_work(process, out)
        time.sleep(seconds)
        interrupt(process)
        if len([*out.parent.iterdir()]) > 1:
            break
    before = {path.name: path.stat().st_size for path in out.parent.rglob("part-*")}
    change(source)
    process = start(command, source, out)
    try:
        message = process.communicate(timeout=20)[1]
    finally:
        process.kill()
    assert process.returncode == 2 and "t.jsonl" in message and "--force" in message
    assert before == {path.name: path.stat().st_size for path in out.parent.rglob("part-*")}
    assert before and not out.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_that_appears_during_the_work_is_kept(data, tmp_path, command):
    source, out = tmp_path / "in" / "t.jsonl", tmp_path / "out" / "o"
    out = out.with_suffix(".jsonl" if command == "score" else ".bin")
    for path in (source, out):
        path.parent.mkdir()
    n_bytes = 60_000 if command == "score" else 10_000_000
    write_documents(source, data, n_bytes)
    (out.parent / "note").touch()
    process = start(command, source, out)
    wait_for_work(process, out)
    out.write_text("of another")
    message = process.communicate(timeout=120)[1]
    assert out.read_text() == "of another"
    assert process.returncode == 2 and "exists already" in message


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".txt.gz"])
def test_a_small_file_that_unpacks_to_a_large_text(tmp_path, suffix):
    path, out = tmp_path / f"x{suffix}", tmp_path / "o.bin"
    if suffix == ".npz":
        np.savez_compressed(path, np.zeros(100_000_000, np.uint16))
    elif suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        table = pyarrow.table({"text": ["a " * 100_000_000]})
        with path.open("wb") as file:
            parquet.write_table(table, file, compression="zstd", use_dictionary=False)
    else:
        import gzip

        path.write_bytes(gzip.compress(b"a " * 100_000_000, 1))
    assert path.stat().st_size < 1_000_000
    process = start("encode", path, out)
    try:
        message = process.communicate(timeout=30)[1]
    finally:
        process.kill()
    assert process.returncode in (1, 2) and "set GPT2NP_MAX_COMPRESSION_RATIO" in message
    assert not out.exists()
