"""What several commands share: standard input as -, int8 weights, and messages."""

import json

import pytest
from helpers.command_line import run_here

import gpt2np
from gpt2np.errors import install_hint
from gpt2np.limits import Limits

TEXT = "The fox ran to the bell. The bell rang."


def run(*arguments, **options):
    return run_here(*arguments, GPT2NP_MODEL="bundled", **options)


COMMANDS = {  # {} is the input
    "score": "score {}",
    "encode": "encode {} out.npy",
    "train-tokenizer": "train-tokenizer {} --vocab-size 260 --out vocabulary",
    "prompts": "batch {} --out out.jsonl --greedy -n 3",
}


def read_results(folder):
    """Return the content of every new file; the speed of a completion is left out."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    contents = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    del contents["text.txt"]
    if "out.jsonl" in contents:
        contents["out.jsonl"] = json.loads(contents["out.jsonl"])["text"]
    return contents


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_standard_input_equals_a_file(tmp_path, command):
    outputs, contents = [], []
    for name, stdin in (("text.txt", ""), ("-", TEXT)):
        folder = tmp_path / f"with {name}"
        folder.mkdir()
        (folder / "text.txt").write_text(TEXT, encoding="utf-8")
        result = run(*command.format(name).split(), stdin=stdin, folder=folder)
        assert result.returncode == 0, result.stderr
        outputs.append(result.stdout)
        contents.append(read_results(folder))
    assert outputs[0] == outputs[1]
    assert contents[0] == contents[1]


def test_a_text_has_a_limit(tmp_path, monkeypatch):
    small = Limits(max_document_bytes=40)
    monkeypatch.setattr("gpt2np.cli.text_input.limits", lambda: small)
    result = run("tokenize", "-", stdin="x" * 41, folder=tmp_path)
    assert result.returncode == 2
    assert "has more than 40 bytes; to raise this limit, set GPT2NP_MAX" in result.stderr


def test_large_word_perplexity_is_readable(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("zqxjkvbw" * 20, encoding="utf-8")
    lines = run("score", str(file)).stdout.splitlines()
    [value] = [line.split()[-1] for line in lines if line.startswith("word perplexity")]
    assert float(value) > 1e20
    assert len(value) < 10


def test_install_hint_is_true_in_a_checkout():
    assert install_hint("chat").endswith("in a checkout of gpt2np, run: pip install '.[chat]'")


def test_int8_weights(tmp_path):
    int8 = ("--model", "bundled", "--weights", "int8")
    lm = gpt2np.load("bundled", weights="int8")
    result = run("generate", TEXT, *int8, "-n", "30", "--greedy", "--no-echo")
    expected = lm.generate(TEXT, max_new_tokens=30, temperature=0).text
    assert result.stdout == f"{expected}\n"
    (tmp_path / "a.txt").write_text(TEXT)
    assert run("score", tmp_path / "a.txt", "--out", tmp_path / "o.jsonl", *int8).returncode == 0
    [line] = (tmp_path / "o.jsonl").read_text().splitlines()
    assert json.loads(line)["log_probability"] == pytest.approx(lm.score(TEXT).total, rel=1e-6)


def test_explain_writes_one_file_and_prints_its_name(tmp_path):
    page = tmp_path / "page.html"
    result = run("explain", TEXT, "-o", page)
    assert (result.returncode, result.stdout) == (0, f"{page}\n"), result.stderr
    assert list(tmp_path.iterdir()) == [page]
    lines = result.stderr.splitlines()
    assert lines[0] == "model: bundled" and lines[1].endswith(f", {page.stat().st_size:,} bytes")
    html = page.read_text(encoding="utf-8")
    assert html.startswith("<!DOCTYPE html>") and html.endswith("</html>\n")
    assert "What happens to" in html and TEXT in html and len(html) < 700_000
