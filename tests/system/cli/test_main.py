"""Failures that every command reports in the same way: one line on stderr, and an exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.command_line import run_here

posix = pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")


def shell(script, *arguments, cwd=None, **variables):
    return subprocess.run(
        ["bash", "-c", script, sys.executable, *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        cwd=cwd,
        env=os.environ | {"GPT2NP_MODEL": "bundled"} | variables,
    )


@posix
@pytest.mark.parametrize(
    ("command", "redirection"),
    [
        ("convert bundled o", ">/dev/full"),
        ("train-tokenizer t.txt --vocab-size 260 --out o", ">&-"),
        ("explain Hi -o o.html", ">&-"),
    ],
)
def test_a_result_is_complete_if_only_stdout_fails(tmp_path, command, redirection):
    (tmp_path / "t.txt").write_text("one two")
    result = shell(f'"$0" -m gpt2np {command} {redirection}', cwd=tmp_path)
    assert result.returncode == 1 and [*tmp_path.glob("o*")]
    assert "error: " in result.stderr and "standard output" in result.stderr.splitlines()[-1]


@posix
@pytest.mark.parametrize(
    "command",
    ["encode t.txt out.bin", "batch t.txt -n 1 --out out.jsonl", "explain Hi -o out.html"],
)
def test_an_output_that_is_a_link_or_a_pipe(tmp_path, command):
    """A link is written through; a broken link and a pipe are refused and stay."""
    (tmp_path / "t.txt").write_text("one two")
    out, target = tmp_path / command.split()[-1], tmp_path / "disk" / "target"
    arguments, options = command.split(), {"folder": tmp_path, "GPT2NP_MODEL": "bundled"}
    os.mkfifo(out)
    result = run_here(*arguments, "--force", **options)
    assert result.returncode == 2 and f"{out.name} is not a file" in result.stderr
    assert out.is_fifo()
    out.unlink()
    target.parent.mkdir()
    out.symlink_to("disk/target")
    result = run_here(*arguments, **options)
    assert result.returncode == 2 and f"{out.name} is a broken link; remove it" in result.stderr
    target.write_text("old")
    result = run_here(*arguments, "--force", **options)
    assert result.returncode == 0 and out.is_symlink()
    assert [path.name for path in target.parent.iterdir()] == ["target"]
    assert target.stat().st_size > len("old") and not target.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", out.name, "t.txt"]


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs ulimit -v, as Linux has it")
def test_out_of_memory(tmp_path):
    with (tmp_path / "big.txt").open("wb") as file:
        file.truncate(3 << 30)
    script = 'ulimit -v 2000000; "$0" -m gpt2np tokenize < big.txt'
    result = shell(script, cwd=tmp_path, GPT2NP_MAX_DOCUMENT_BYTES="4000000000")
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("gpt2np tokenize: error: out of memory")


def test_ctrl_c_during_an_import_lets_the_command_keep_its_work(tmp_path):
    (tmp_path / "slow.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    code = """
import gpt2np.cli.main
from gpt2np.__main__ import main
def run(arguments):
    try:
        import slow
        import time
        time.sleep(60)  # the signal comes after the import, and ends the sleep
    finally:
        print("kept", flush=True)
gpt2np.cli.main.run = run
raise SystemExit(main())
"""
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert (result.returncode, result.stdout, result.stderr) == (130, "kept\n", "")


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs ulimit -f, as Linux has it")
@pytest.mark.parametrize(
    "command",
    [
        "encode long.jsonl o.bin",
        "score long.jsonl --out o.jsonl",
        "train-tokenizer long.jsonl --vocab-size 300 --out o",
        "explain Hi -o old --force",
    ],
)
def test_a_full_disk_leaves_nothing_new(tmp_path, command):
    """The limit on a file's size, 1 KiB, stands for a full disk."""
    lines = (json.dumps({"text": f"the fox and number {n} {n**3}"}) for n in range(60))
    (tmp_path / "long.jsonl").write_text("\n".join(lines))
    command = command.replace("old", "old.html")
    (tmp_path / "old.html").write_text("kept")
    result = shell(f'trap "" XFSZ; ulimit -f 1; exec "$0" -B -m gpt2np {command}', cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"gpt2np {command.split()[0]}: error: cannot write ")
    assert last.endswith(": File too large") and "Traceback" not in result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["long.jsonl", "old.html"]
    assert (tmp_path / "old.html").read_text() == "kept"


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that root cannot write")
@pytest.mark.parametrize(
    "command",
    [
        "encode t.txt /proc/o.npz",
        "batch t.txt -n 1 --out /proc/o.jsonl",
        "score t.txt --out /proc/o.jsonl",
        "train-tokenizer t.txt --vocab-size 300 --out /proc/o",
        "parity record --prompt a --points ln_f /proc/o.safetensors",
        "explain Hi -o /proc/o.html",
        "convert bundled /proc/o",
    ],
)
def test_a_folder_that_cannot_be_written(tmp_path, command):
    (tmp_path / "t.txt").write_text("one two")
    result = run_here(*command.split(), folder=tmp_path, GPT2NP_MODEL="bundled")
    assert (result.returncode, result.stdout) == (1, "")
    path = command[command.index("/proc") :]
    last = result.stderr.splitlines()[-1]
    message = f"cannot write {path}: No such file or directory"
    assert last == f"gpt2np {command.split()[0]}: error: {message}"
