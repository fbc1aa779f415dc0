"""Files of prompts: what is on each line, or what is wrong with it."""

import gzip
import json

import pytest

from gpt2np import InvalidArgumentError
from gpt2np.prompts import PromptLine, line_count, read_prompts


def lines(tmp_path, content, name="x.jsonl"):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_prompts(tmp_path / name))


def test_a_text_on_each_line(tmp_path):
    found = lines(tmp_path, b'\xef\xbb\xbfa b \r\n\n \t\n"c"\n\xc3\xa4\xe2\x80\xa8x', "x.txt")
    assert found == [
        PromptLine(1, "a b "),
        PromptLine(4, '"c"'),
        PromptLine(5, "ä\u2028x"),  # no line ends there
    ]


def test_json_on_each_line(tmp_path):
    third = '{"prompt": "", "seed": null, "regex": null}'
    found = lines(tmp_path, '"a\\nb"\n{"prompt": [5, 6], "seed": 3, "id": [1]}\n\n' + third)
    assert found == [
        PromptLine(1, "a\nb"),
        PromptLine(2, [5, 6], {"seed": 3}, [1]),
        PromptLine(4, ""),  # without a seed of its own it has the job's
    ]


def test_from_a_line_on(tmp_path):
    lines(tmp_path, "a\nb\nc\n", "x.txt")
    assert list(read_prompts(tmp_path / "x.txt", after=2)) == [PromptLine(3, "c")]
    assert line_count(tmp_path / "x.txt") == 3


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"abc", "not JSON"),
        (b'{"text": "a"}', 'an object with a "prompt"'),
        (b'{"prompt": 7}', "the prompt is 7; expected a string or a list"),
        (b'{"prompt": "a", "temprature": 1}', "'temprature'; did you mean 'temperature'?"),
        (b'{"prompt": "a", "n": 2}', "unknown option 'n'; did you mean 'num_return_sequences'?"),
        (b'"\xff"', "is not UTF-8 text: byte 0xff"),
        (rb'"\ud800"', "half of a surrogate pair"),
        (rb'{"prompt": "a", "stop": "\ud800"}', "half of a surrogate pair"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_broken_lines(tmp_path, line, told):
    before, broken, after = lines(tmp_path, b'"a"\n' + line + b'\n"b"\n')
    assert (before.prompt, after.prompt) == ("a", "b")
    assert broken.number == 2 and broken.prompt is None and told in broken.problem


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.parquet"])
def test_other_fields_are_kept_for_the_results(tmp_path, name):
    row = {"question": "Why?", "top_k": "5", "note": "n"}
    if name == "x.parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist([row]), tmp_path / name)
    else:
        csv = "question,top_k,note\nWhy?,5,n\n"
        (tmp_path / name).write_text(csv if name == "x.csv" else json.dumps(row))
    [line] = read_prompts(tmp_path / name, "question")
    columns = row if name != "x.jsonl" else {"question": "Why?", "note": "n"}
    options = {"top_k": "5"} if name == "x.jsonl" else {}  # columns of a table are no options
    assert line == PromptLine(1, "Why?", options, None, columns)


@pytest.mark.parametrize(
    ("name", "content", "n_lines"),
    [
        ("x.csv", b'prompt,note\n"a\nb",1\n\nc,2\n', 5),
        ("x.jsonl.gz", gzip.compress(b'"a"\n"c"\n', mtime=0), 2),
        ("x.jsonl", b'\n"c"\n\n', 3),
    ],
)
def test_numbers_and_count_of_lines_in_a_table_or_compressed(tmp_path, name, content, n_lines):
    *_, last = lines(tmp_path, content, name)
    assert last.number == 2
    assert line_count(tmp_path / name) == n_lines


def test_lines_are_counted_without_parsing(tmp_path, monkeypatch):
    (tmp_path / "x.jsonl").write_text('"a"\n' * 1000, encoding="utf-8")
    parsed = []
    monkeypatch.setattr(json, "loads", lambda text: parsed.append(text) or text)
    assert line_count(tmp_path / "x.jsonl") == 1000
    assert len(parsed) == 1


def test_no_file(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"cannot read .*: No such file"):
        line_count(tmp_path / "x.txt")
