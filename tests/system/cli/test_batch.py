"""`batch` as a user runs it; interrupted, and run again."""

import contextlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import time

import pytest
from helpers.command_line import run_here
from helpers.parts import saves
from helpers.patched_cli import SLOW_MODEL, WAIT_FOR_STDIN, small_parts
from helpers.processes import wait_while_running

from gpt2np import GPT2, LanguageModel, load
from gpt2np.language_model import language_model_fingerprint

COMMAND = ["batch", "--model", "bundled"]
SMALL_PARTS = [*small_parts(0.03), *COMMAND]  # here hundreds of times
WORDS = ["the", "fox", "king", "little", "boat", "ran", "said", "went", "house", "princess"]


def batch(*arguments, stdin=""):
    return run_here(*COMMAND, *arguments, stdin=stdin)


def written(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def short_prompts(path, count):
    rng = random.Random(1)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 8))) for _ in range(count)]
    path.write_text("\n".join(texts) + "\n")
    return texts


def test_each_line_is_what_it_would_be_alone(lm, tmp_path):
    lines = [
        "The fox",
        {"prompt": "A king", "max_new_tokens": 3, "id": 7},
        {"prompt": "", "temperature": 0, "top_k": 0},
        {"prompt": [5, 6, 7], "seed": 50, "stop": ["."]},
        {"prompt": "It was", "choices": [" so", " not so"]},
        {"prompt": "The old man", "num_return_sequences": 2},
        {"prompt": "The old man", "num_beams": 2, "temperature": 0, "top_k": 0},
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    arguments = ["-n", "12", "--seed", "10", "--top-k", "20"]
    result = batch(tmp_path / "p.jsonl", "--out", tmp_path / "o.jsonl", *arguments)
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr.splitlines()[-1] == f"7 texts in {tmp_path / 'o.jsonl'}"
    found = written(tmp_path / "o.jsonl")
    assert [line["line"] for line in found] == [1, 2, 3, 4, 5, 6, 7]
    for number, (line, said) in enumerate(zip(found, lines, strict=True)):
        own = {"prompt": said} if isinstance(said, str) else dict(said)
        assert line.get("id") == own.pop("id", None)
        shared = {"max_new_tokens": 12, "seed": 10 + number}
        if own.get("temperature") != 0:  # for a greedy text alone, top_k is an error
            shared["top_k"] = 20
        options = {**shared, **own}
        alone = lm.generate(options.pop("prompt"), **options)
        assert (line["text"], line["ids"], line["seed"]) == (alone.text, alone.ids, alone.seed)
        assert [each["ids"] for each in line.get("alternatives", [])] == [
            each.ids for each in alone.alternatives
        ]
    assert not (tmp_path / "o.jsonl.partial").exists()


def test_a_broken_line_is_told_and_left_out(tmp_path):
    lines = ['"a"', "oops", '{"prompt": "b", "top_p": 7}', json.dumps("word " * 600), "", '"c"']
    lines += ['{"prompt": [99999]}', '{"prompt": "d", "regex": "(a"}', '{"prompt": "e", "stop": 1}']
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    result = batch(tmp_path / "p.jsonl", "--out", tmp_path / "o.jsonl", "-n", "2")
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert [line["line"] for line in written(tmp_path / "o.jsonl")] == [1, 6]
    told = [line for line in result.stderr.splitlines() if line.startswith("skipped: ")]
    assert [int(line.split(" line ")[1].split(":")[0]) for line in told] == [2, 3, 4, 7, 8, 9]
    assert result.stderr.endswith("2 texts in " + str(tmp_path / "o.jsonl") + ", 6 lines skipped\n")


def test_without_a_usable_line_nothing_is_written(tmp_path):
    (tmp_path / "p.jsonl").write_text("oops\n[5\n")
    out = tmp_path / "o.jsonl"
    for _ in range(2):  # the second time without --force, too
        result = batch(tmp_path / "p.jsonl", "--out", out)
        assert result.returncode == 1 and "Traceback" not in result.stderr
        told = f"there is no usable prompt; {out} is not written\n"
        assert result.stderr.endswith(f"gpt2np batch: error: {told}")
        assert [path.name for path in tmp_path.iterdir()] == ["p.jsonl"]
    out.write_text("kept")
    assert batch(tmp_path / "p.jsonl", "--out", out, "--force").returncode == 1
    assert out.read_text() == "kept"


def test_progress_at_a_terminal(tmp_path):
    pty, fcntl, termios = map(pytest.importorskip, ("pty", "fcntl", "termios"))
    short_prompts(tmp_path / "p.txt", 40)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    where = [str(tmp_path / "p.txt"), "--out", str(tmp_path / "o.jsonl")]
    command = [*SLOW_MODEL, *COMMAND, *where, "-n", "8"]
    process = subprocess.Popen(command, stderr=theirs)
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # when nobody holds the other end any more
        while piece := os.read(ours, 4096):
            seen += piece
    assert process.wait(timeout=60) == 0
    bars = [line for line in seen.decode().split("\r") if line.startswith("generating: ")]
    assert bars[0].split("|")[-1].startswith(" 0/40 [00:00<")  # and the time that is left
    assert any("tokens/s]" in bar for bar in bars)


def test_a_copied_or_touched_model_resumes_and_another_does_not(bundled, tmp_path):
    for name in ("a", "b"):
        shutil.copytree(bundled, tmp_path / name)
    first, copied = (load(str(tmp_path / name)) for name in ("a", "b"))
    os.utime(tmp_path / "a" / "model.safetensors", (1, 1))
    fingerprint = language_model_fingerprint(first)
    assert language_model_fingerprint(load(str(tmp_path / "a"))) == fingerprint
    assert language_model_fingerprint(copied) == fingerprint
    weights = {**first.model.weights, "ln_f.bias": first.model.weights["ln_f.bias"] + 1}
    other = LanguageModel(GPT2(first.model.config, weights), first.tokenizer)
    assert language_model_fingerprint(other) != fingerprint


class TestInterruption:
    def arguments(self, tmp_path, out):
        where = [str(tmp_path / "p.txt"), "--out", str(tmp_path / out)]
        return [*where, "-n", "2", "--seed", "1", "--threads", "1"]

    def test_ctrl_c_keeps_what_is_done(self, tmp_path):
        short_prompts(tmp_path / "p.txt", 400)
        arguments = self.arguments(tmp_path, "o.jsonl")[:-4]  # the seed is chosen, and kept
        process = subprocess.Popen([*SMALL_PARTS, *arguments], stderr=subprocess.PIPE)
        wait_while_running(process, lambda: saves(tmp_path / "o.jsonl.partial"))
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=120)
        assert process.returncode == 130 and b"Traceback" not in stderr
        assert b"interrupted; run the same command again to go on" in stderr
        seed = next(line for line in stderr.decode().splitlines() if line.startswith("seed: "))
        parts = saves(tmp_path / "o.jsonl.partial")
        other = batch(*arguments, "-n", "3", "--top-p", "0.5")
        assert other.returncode == 2 and seed in other.stderr
        told = "but --max-new-tokens was 2, is 3; --top-p was not given, is 0.5; undo the change"
        assert told in other.stderr.splitlines()[-1]
        (tmp_path / "p.txt").write_text("another\n")
        other = batch(*arguments)
        assert other.returncode == 2 and f"of {tmp_path / 'p.txt'} has changed" in other.stderr
        assert saves(tmp_path / "o.jsonl.partial") == parts
        other = batch(*arguments, "--force")
        assert seed in other.stderr and "discarding unfinished work: " in other.stderr
        assert [line["prompt"] for line in written(tmp_path / "o.jsonl")] == ["another"]

    def test_ctrl_c_before_the_first_results(self, tmp_path):
        (tmp_path / "p.txt").write_text("The king\n")
        arguments = [*self.arguments(tmp_path, "o.jsonl"), "-n", "400", "--ignore-eos"]
        command = [*WAIT_FOR_STDIN, *COMMAND, *arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_while_running(process, (tmp_path / "o.jsonl.partial" / "task.json").exists)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=120)
        assert process.returncode == 130
        assert b"interrupted; run the same command again to start over" in stderr
        assert [path.name for path in tmp_path.iterdir()] == ["p.txt"]
