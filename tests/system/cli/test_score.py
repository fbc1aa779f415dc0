"""`gpt2np score` as a user runs it."""

import json
import random

import pytest
from helpers.command_line import run_here

from gpt2np.evaluation.perplexity import perplexity


def score_here(*arguments):
    return run_here("score", *arguments, "--model", "bundled")


@pytest.fixture
def texts(tmp_path):
    rng = random.Random(1)
    words = ["the king", "and", "fox", "é🦊", "was old."]
    lines = [" ".join(rng.choices(words, k=rng.randrange(1, 30))) for _ in range(8)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in lines))
    return tmp_path / "t.jsonl"


def test_documents_that_cannot_be_read_are_skipped(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "The fox"}\n{"txt": "x"}\n')
    result = score_here(tmp_path / "a.jsonl", "--out", tmp_path / "o.jsonl")
    assert result.returncode == 1 and "1 document in" in result.stderr
    assert "skipped: " in result.stderr and "a.jsonl, line 2: expected a string" in result.stderr
    (tmp_path / "b.jsonl").write_text('{"txt": "x"}\n')
    result = score_here(tmp_path / "b.jsonl", "--out", tmp_path / "b.out.jsonl")
    assert result.returncode == 2 and "there is no text" in result.stderr
    assert sorted(path.name for path in tmp_path.glob("*.partial")) == []


def test_standard_input_has_the_name_of_the_argument(tmp_path):
    result = run_here("score", "-", "--out", tmp_path / "o.jsonl", "--model", "bundled", stdin="A")
    assert result.returncode == 0
    assert json.loads((tmp_path / "o.jsonl").read_text())["file"] == "-"
    result = run_here(
        "score", "-", "--out", tmp_path / "p.jsonl", "--model", "bundled", stdin=b"A \xe9"
    )
    assert "skipped: -, document 1 is not UTF-8 text: byte 0xe9 at offset 2" in result.stderr


def test_without_out_the_sum_of_all_rows_is_printed(texts, lm):
    out = texts.parent / "o.jsonl"
    with_rows = score_here(texts, "--out", out, "--json")
    alone = score_here(texts, "--json")
    assert with_rows.returncode == alone.returncode == 0, alone.stderr
    assert json.loads(alone.stdout) == json.loads(with_rows.stdout)
    documents = [json.loads(line)["text"] for line in texts.open()]
    expected = perplexity(lm, documents).to_json()
    found = json.loads(alone.stdout)
    assert (found.pop("model"), found.pop("from_end_of_text")) == ("bundled", True)
    assert found == pytest.approx(expected, rel=1e-6)
    table = dict(line.split("  ", 1) for line in score_here(texts).stdout.splitlines())
    assert table["perplexity"].strip() == f"{expected['perplexity']:,.0f}"


def test_the_first_token_can_be_left_out(tmp_path):
    (tmp_path / "t.txt").write_text("The")
    assert json.loads(score_here(tmp_path / "t.txt", "--json").stdout)["counted"] == 1
    result = score_here(tmp_path / "t.txt", "--no-from-end-of-text")
    assert result.returncode == 2 and "no token has a token before it" in result.stderr


def test_field_is_for_a_table_whose_suffix_is_in_capitals(tmp_path):
    (tmp_path / "t.CSV").write_text("id,text\n1,The fox\n2,The king\n")
    result = score_here(tmp_path / "t.CSV", "--field", "id", "--out", tmp_path / "o.jsonl")
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert [row["tokens"] for row in rows] == [1, 1]
