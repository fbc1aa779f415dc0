"""`python -m gpt2np eval` as a user runs it, with good and bad files."""

import json
import math
import os
import signal
import struct
import subprocess
import sys
import time

import pytest
from helpers.command_line import run_here

from gpt2np.evaluation.lambada import lambada
from gpt2np.evaluation.multiple_choice import Question, multiple_choice
from gpt2np.evaluation.perplexity import perplexity, split_pages, wikitext

COMMAND = [sys.executable, "-m", "gpt2np", "eval"]
STORY = "The fox went home. Then he lay down and slept, as a fox does, until the sun was up."
PASSAGES = [STORY, "He had a dog. He loved his dog", "One"]
WIKI = " \n = Fox = \n \n The fox , a red @-@ brown animal , sleeps . \n = Owl = \n An owl . \n"
QUESTIONS = [
    {"context": "The fox ran into the", "choices": ["woods.", "zzz"], "answer": 0},
    {"goal": "Sleep?", "sol1": "qq", "sol2": "Lie down.", "label": 1},
]


def evaluate(*arguments, model="bundled"):
    return run_here("eval", *arguments, "--model", model)


def numbers(*arguments):
    result = evaluate(*arguments, "--json")
    assert (result.returncode, result.stderr) == (0, "model: bundled\n"), result.stderr
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


@pytest.fixture
def file(tmp_path):
    def write(content, name="a.txt"):
        path = tmp_path / name
        if isinstance(content, list):
            content = "".join(json.dumps(line) + "\n" for line in content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


class TestPerplexity:
    def test_json(self, lm, file):
        content = numbers("perplexity", file(STORY * 5), "--context", "40", "--stride", "30")
        expected = perplexity(lm, [STORY * 5], context=40, stride=30)
        assert content["task"] == "perplexity" and content["model"] == "bundled"
        assert content["definition"] == "huggingface-fixed-length"
        for name in ("perplexity", "in_guide", "word_perplexity", "byte_perplexity"):
            assert content[name] == pytest.approx(getattr(expected, name), rel=1e-6)
        for name in ("bits_per_byte", "bits_per_character", "log_probability"):
            assert content[name] == pytest.approx(getattr(expected, name), rel=1e-6)
        for name in ("documents", "tokens", "counted", "words", "characters", "bytes"):
            assert content[name] == getattr(expected, name)
        assert (content["context"], content["stride"]) == (40, 30)

    def test_table(self, lm, file):
        result = evaluate("perplexity", file(STORY), file(f"{STORY}<|endoftext|>\nOne", "b.txt"))
        expected = perplexity(lm, [STORY, STORY, "One"])
        lines = dict(line.split("  ", 1) for line in result.stdout.splitlines())
        shown = {name: value.strip() for name, value in lines.items()}
        assert shown["perplexity"] == f"{expected.perplexity:.4f} per token"
        assert shown["by the guide's program"] == f"{expected.in_guide:.4f}"
        assert shown["documents"] == "3"
        assert shown["windows"] == "of 512 tokens, every 256"
        assert result.stderr.startswith("model: bundled\n") and result.stderr.endswith(" s\n")

    def test_json_lines(self, lm, file):
        path = file([{"story": STORY}, {"story": "One two."}], "a.jsonl")
        content = numbers("perplexity", path, "--field", "story", "--from-end-of-text")
        expected = perplexity(lm, [STORY, "One two."], from_end_of_text=True)
        assert content["counted"] == content["tokens"] == expected.tokens
        assert content["perplexity"] == pytest.approx(expected.perplexity, rel=1e-6)

    @pytest.mark.parametrize("extra", [-1, 0, 1])
    def test_a_document_of_the_contexts_length_but_one(self, lm, file, extra):
        ids = lm.tokenizer.encode(STORY * 40)[: 512 + extra]
        text = lm.tokenizer.decode(ids)
        content = numbers("perplexity", file(text), "--stride", "512")
        expected = lm.score(
            ids[:512], from_end_of_text=False
        ).total  # a 513th stands alone in its window
        assert content["tokens"] == len(ids) and content["counted"] == min(len(ids), 512) - 1
        assert content["log_probability"] == pytest.approx(expected, rel=1e-6)

    def test_one_token(self, file):
        result = evaluate("perplexity", file("The"))
        assert (result.returncode, result.stdout) == (2, "")
        assert "no token has a token before it" in result.stderr
        assert numbers("perplexity", file("The"), "--from-end-of-text")["counted"] == 1

    def test_an_empty_file(self, file):
        result = evaluate("perplexity", file(""))
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr == (
            "gpt2np eval: error: there are no tokens; give a file that is not empty\n"
        )

    def test_not_utf8(self, file):
        path = file(b"The fox\xff ran home")
        result = evaluate("perplexity", path)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr == (
            f"gpt2np eval: error: {path} is not UTF-8 text: byte 0xff at offset 7; convert the "
            "file, or read such bytes as U+FFFD with --errors replace\n"
        )
        assert numbers("perplexity", path, "--errors", "replace")["characters"] == 17

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--stride", "513"], "--stride is 513; it must be 1 to 512, the context"),
            (["--stride", "65", "--context", "64"], "--stride is 65; it must be 1 to 64"),
            (["--stride", "0"], "--stride is 0; it must be at least 1"),
            (["--context", "513"], "--context is 513; it must be 2 to 512"),
            (["--stride", "x"], "invalid int value: 'x'"),
            (["--threads", "0"], "--threads is 0; it must be at least 1"),
            (["--field", "story"], "--field is for .jsonl, .csv, .tsv and .parquet files"),
        ],
    )
    def test_wrong_use(self, file, options, message):
        result = evaluate("perplexity", file(STORY), *options)
        assert (result.returncode, result.stdout) == (2, "")
        assert message in result.stderr and "Traceback" not in result.stderr
        assert result.stderr.removeprefix("model: bundled\n").count("\n") == 1


def test_a_table_is_refused(file):
    path = file(f"id,text\n1,{STORY}\n", "a.csv")
    result = evaluate("perplexity", path, "--field", "text")
    assert (result.returncode, result.stdout) == (2, "")
    assert "is a table; gpt2np score scores each of its rows" in result.stderr
    folder = evaluate("perplexity", path.parent)
    assert folder.returncode == 2 and "is a folder; give files, or use gpt2np" in folder.stderr
    missing = evaluate("perplexity", path.with_name("missing.csv"))
    assert missing.returncode == 2 and "missing.csv: No such file" in missing.stderr


def test_a_broken_line_is_named_before_the_model_loads(file):
    lines = json.dumps({"text": STORY, "page": STORY, **QUESTIONS[0]})
    path = file(f"{lines}\n{lines}\n{{broken\n", "a.jsonl")
    for task in ("perplexity", "lambada", "wikitext", "choices"):
        result = evaluate(task, path)
        assert (result.returncode, result.stdout) == (2, ""), task
        told = f"gpt2np eval: error: {path}, line 3: not JSON ("
        assert result.stderr.startswith(told) and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("lambada", "there are no passages"),
        ("wikitext", "there are no pages"),
        ("choices", "there are no questions"),
    ],
)
def test_empty_files(file, task, message):
    result = evaluate(task, file("", "a.jsonl"))
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()  # found before the model loads
    assert message in line


@pytest.mark.parametrize("task", ["lambada", "wikitext"])
def test_a_limit_beyond_any_file(file, task):
    path = file('{"text": "The fox ran home", "page": "The fox ran home"}\n', "a.jsonl")
    assert evaluate(task, path, "--limit", "9" * 30).returncode == 0


class TestLambada:
    def test_harness(self, lm, file):
        path = file([{"text": text} for text in PASSAGES], "a.jsonl")
        content, expected = numbers("lambada", path), lambada(lm, PASSAGES)
        assert content["definition"] == "harness" and content["passages"] == 3
        assert content["accuracy"] == expected.accuracy and content["accuracy_filtered"] is None
        assert content["perplexity"] == pytest.approx(expected.perplexity, rel=1e-6)
        limited = numbers("lambada", path, "--limit", "2")
        assert limited["passages"] == 2
        assert limited["perplexity"] == pytest.approx(lambada(lm, PASSAGES[:2]).perplexity)

    def test_paper(self, lm, file):
        path = file([{"passage": text} for text in PASSAGES], "a.jsonl")
        options = ["--definition", "gpt2-paper", "--field", "passage"]
        result = evaluate("lambada", path, *options, "--stop-words", file("the\nA\n", "s.txt"))
        expected = lambada(lm, PASSAGES, "gpt2-paper", stop_words={"the", "a"})
        assert result.returncode == 0, result.stderr
        assert f"stop words filtered  {expected.accuracy_filtered:.4f}" in result.stdout
        assert "gpt2-paper" in result.stdout

    def test_stop_words_of_the_wrong_definition(self, file):
        result = evaluate("lambada", file("", "a.jsonl"), "--stop-words", file("", "s.txt"))
        assert result.returncode == 2 and "only for --definition gpt2-paper" in result.stderr

    def test_no_limit_below_one(self, file):
        result = evaluate("lambada", file("", "a.jsonl"), "--limit", "0")
        assert result.returncode == 2 and "--limit is 0; it must be at least 1" in result.stderr


def test_wikitext(lm, file):
    expected = wikitext(lm, split_pages(WIKI))
    content = numbers("wikitext", file(WIKI))
    pages = [{"page": page} for page in split_pages(WIKI)]
    texts = [{"text": page} for page in split_pages(WIKI)]
    again = numbers("wikitext", file(pages, "b.jsonl"))
    assert again["pages"] == numbers("wikitext", file(texts, "c.jsonl"), "--field", "text")["pages"]
    for name in ("pages", "words", "bytes", "word_perplexity", "byte_perplexity", "bits_per_byte"):
        assert content[name] == again[name] == pytest.approx(getattr(expected, name), rel=1e-6)
    assert content["pages"] == 2 and content["definition"] == "harness"


def test_choices(lm, file):
    path = file(QUESTIONS, "a.jsonl")
    questions = [
        Question("The fox ran into the", ("woods.", "zzz"), 0),
        Question("Question: Sleep?\nAnswer:", ("qq", "Lie down."), 1),
    ]
    content, expected = numbers("choices", path), multiple_choice(lm, questions)
    assert content["questions"] == 2
    for name in ("acc", "acc_norm", "acc_bytes"):
        assert content[name] == getattr(expected, name)
    result = evaluate("choices", path)
    assert f"acc_norm   {expected.acc_norm:.4f} ({expected.correct_by_characters} of 2)" in (
        result.stdout
    )


def test_an_infinite_number_is_null(file):
    content = numbers("perplexity", file("xq" * 800))
    assert content["word_perplexity"] is None and math.isfinite(content["perplexity"])


def test_no_such_model(file, tmp_path):
    result = evaluate("perplexity", file(STORY), model=tmp_path / "nothing" / "at" / "all")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("gpt2np eval: error: ") and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "required: TASK"), (["juggle"], "invalid choice: 'juggle'"), (["lambada"], "FILE")],
)
def test_no_task(arguments, message):
    result = run_here("eval", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize("task", [[], ["perplexity"], ["lambada"], ["wikitext"], ["choices"]])
def test_help_does_without_numpy_and_fits_80_columns(task, tmp_path):
    (tmp_path / "numpy.py").write_text("raise ImportError('not here')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"COLUMNS": "80", "PYTHONPATH": path}
    command = [*COMMAND, *task, "--help"]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment)
    assert result.returncode == 0 and "usage: gpt2np eval" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.skipif(os.name == "nt", reason="there are no pseudo-terminals")
def test_the_bar_and_ctrl_c(file):
    import fcntl
    import pty
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    command = [*COMMAND, "perplexity", str(file(STORY * 9000)), "--model", "bundled"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    seen = b""
    deadline = time.monotonic() + 60
    while b"perplexity " not in seen and time.monotonic() < deadline:
        seen += os.read(ours, 4096)
    process.send_signal(signal.SIGINT)
    try:
        while part := os.read(ours, 4096):
            seen += part
    except OSError:  # closed at the other end
        pass
    assert process.wait(60) == 130, seen
    assert process.stdout.read() == b""
    last = seen.decode().replace("\r", "\n").strip().split("\n")[-1]
    assert last.startswith("interrupted after ") and ": perplexity " in last
    assert b"Traceback" not in seen
