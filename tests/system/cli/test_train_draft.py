"""`python -m gpt2np train-draft` as a user runs it, and the table that it writes."""

import os
import signal
import subprocess
import sys
import time

import pytest
from helpers.command_line import run_here

from gpt2np import LanguageModel, Tokenizer
from gpt2np.generation.ngram_table import read_ngram_table

TEXT = "The little fox ran home to his mother. The little fox sat down to eat. " * 30


def run(*arguments):
    return run_here("train-draft", "--model", "bundled", *arguments)


@pytest.fixture
def corpus(tmp_path):
    file = tmp_path / "corpus.txt"
    file.write_text(f"{TEXT}\n<|endoftext|>\n" * 4, encoding="utf-8")
    return file


def test_a_table_that_generation_uses(corpus, tmp_path, bundled):
    out = tmp_path / "fox.safetensors"
    result = run(corpus, "--out", out)
    assert result.returncode == 0 and result.stdout == ""
    assert "contexts, counted in" in result.stderr and str(out) in result.stderr
    table, tokenizer = read_ngram_table(out), Tokenizer.load(bundled)
    next_id = table.lookup(tokenizer.encode("The little"))[0]
    assert tokenizer.decode([next_id]) == " fox"
    # After <|endoftext|> the next document begins.
    assert tokenizer.decode([table.lookup([tokenizer.eos_token_id])[0]]) == "The"
    lm = LanguageModel.load(bundled, draft=out)
    prompt, options = "The little fox", {"temperature": 0, "max_new_tokens": 20}
    assert lm.generate(prompt, **options).ids == lm.generate(prompt, draft="none", **options).ids
    arguments = ["generate", prompt, "--model", "bundled", "--greedy", "-n", "20"]
    texts = [run_here(*arguments, "--draft", draft).stdout for draft in (str(out), "none", "auto")]
    assert texts[0] == texts[1] == texts[2] != ""


def test_json_lines_and_the_same_counts_as_text(corpus, tmp_path):
    lines = tmp_path / "corpus.jsonl"
    lines.write_text(f'{{"story": "{TEXT.strip()}"}}\n' * 2, encoding="utf-8")
    first, second = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
    corpus.write_text(f"{TEXT.strip()}<|endoftext|>{TEXT.strip()}", encoding="utf-8")
    assert run(corpus, "--out", first).returncode == 0
    assert run(lines, "--field", "story", "--out", second).returncode == 0
    assert first.read_bytes() == second.read_bytes()


def test_size(tmp_path, data):
    stories = (data / "stories" / "valid.txt").read_text(encoding="utf-8")[:200_000]
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(stories, encoding="utf-8")
    out = tmp_path / "t.safetensors"
    assert run(corpus, "--out", out, "--max-bytes", 20_000).returncode == 0
    assert 18_000 < out.stat().st_size <= 20_000


def test_nothing_is_overwritten_without_force(corpus, tmp_path):
    out = tmp_path / "t.safetensors"
    out.write_bytes(b"mine")
    result = run(corpus, "--out", out)
    assert result.returncode == 2 and "exists already; give --force" in result.stderr
    assert out.read_bytes() == b"mine"
    assert run(corpus, "--out", out, "--force").returncode == 0
    assert len(read_ngram_table(out).hashes) > 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["corpus.txt", "--out", "t.bin"], "must end in .safetensors"),
        (["corpus.txt", "--out", "none/t.safetensors"], "does not exist; create it first"),
        (["corpus.txt", "--out", "t.safetensors", "--max-bytes", "9"], "--max-bytes is 9; give"),
        (["none.txt", "--out", "t.safetensors"], "none.txt does not exist"),
        (["empty.txt", "--out", "t.safetensors"], "no text; there is nothing to count"),
        (["binary.txt", "--out", "t.safetensors"], "is not UTF-8"),
    ],
)
def test_wrong_use_is_one_line(corpus, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    (tmp_path / "empty.txt").touch()
    (tmp_path / "binary.txt").write_bytes(b"\xff\xff")
    before = set(tmp_path.iterdir())
    result = run(*arguments)
    assert result.returncode == 2 and message in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr and set(tmp_path.iterdir()) == before


def test_skip_errors(corpus, tmp_path):
    (tmp_path / "broken.txt").write_bytes(b"\xff\xff")
    result = run(
        corpus, tmp_path / "broken.txt", "--out", tmp_path / "t.safetensors", "--skip-errors"
    )
    assert result.returncode == 0 and "skipped: " in result.stderr


def test_ctrl_c_leaves_nothing(corpus, tmp_path):
    corpus.write_text(TEXT * 20_000, encoding="utf-8")
    out = tmp_path / "t.safetensors"
    command = [sys.executable, "-m", "gpt2np", "train-draft", "--model", "bundled"]
    process = subprocess.Popen([*command, corpus, "--out", out], stderr=subprocess.PIPE)
    process.stderr.readline()  # the vocabulary's name: counting begins
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and b"Traceback" not in stderr
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.txt"]
