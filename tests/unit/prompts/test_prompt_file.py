"""Files of prompts: what is on each line, or what is wrong with it."""

import json

import pytest

from gpt2np import InvalidArgumentError
from gpt2np.prompts.prompt_file import PromptLine, count_lines, read_lines


def lines(tmp_path, content, name="x.jsonl"):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_lines(tmp_path / name))


def test_a_text_on_each_line(tmp_path):
    found = lines(tmp_path, b'\xef\xbb\xbfa b \r\n\n \t\n"c"\n\xc3\xa4\xe2\x80\xa8x', "x.txt")
    assert found == [
        PromptLine(1, "a b "),
        PromptLine(2),
        PromptLine(3),
        PromptLine(4, '"c"'),
        PromptLine(5, "ä\u2028x"),  # no line ends there
    ]


def test_json_on_each_line(tmp_path):
    third = '{"prompt": "", "seed": null, "regex": null}'
    found = lines(tmp_path, '"a\\nb"\n{"prompt": [5, 6], "seed": 3, "id": [1]}\n\n' + third)
    assert found == [
        PromptLine(1, "a\nb"),
        PromptLine(2, [5, 6], {"seed": 3}, [1]),
        PromptLine(3),
        PromptLine(4, "", {"regex": None}),  # without a seed of its own it has the job's
    ]


def test_whole_floats_of_a_table_are_integers(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"prompt": ["a", "b"], "top_k": [3.0, None], "top_p": [0.5, 1.0]}
    parquet.write_table(pytest.importorskip("pyarrow").table(columns), tmp_path / "x.parquet")
    first, second = read_lines(tmp_path / "x.parquet")
    assert repr(first.options) == "{'top_k': 3, 'top_p': 0.5}" and second.options == {"top_p": 1}


def test_from_a_line_on(tmp_path):
    lines(tmp_path, "a\nb\nc\n", "x.txt")
    assert list(read_lines(tmp_path / "x.txt", after=2)) == [PromptLine(3, "c")]
    assert count_lines(tmp_path / "x.txt") == 3


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"abc", "not JSON"),
        (b'{"prompt": "a"', "not JSON"),
        (b"7", 'expected a string or an object with a "prompt"'),
        (b'{"text": "a"}', 'an object with a "prompt"'),
        (b'{"prompt": 7}', "the prompt is 7; expected a string or a list"),
        (b'{"prompt": "a", "temprature": 1}', "'temprature'; did you mean 'temperature'?"),
        (b'{"prompt": "a", "n": 2}', "unknown option 'n'; did you mean 'num_return_sequences'?"),
        (b'{"prompt": "a", "prompt": "b"}', "duplicate key 'prompt'"),
        (b'"\xff"', "not UTF-8 text: byte 0xff"),
        (rb'"\ud800"', r"'\ud800' is half of a surrogate pair"),
        (rb'{"prompt": "a", "id": ["\udfff"]}', r"'\udfff' is half of a surrogate pair"),
        (rb'{"prompt": "a", "stop": "\ud800"}', r"'\ud800' is half of a surrogate pair"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_broken_lines(tmp_path, line, told):
    before, broken, after = lines(tmp_path, b'"a"\n' + line + b'\n"b"\n')
    assert (before.prompt, after.prompt) == ("a", "b")
    assert broken.number == 2 and broken.prompt is None and told in broken.problem


@pytest.mark.parametrize("name", ["prefix", "constraint"])
def test_an_argument_of_generate_that_is_no_option(tmp_path, name):
    [line] = lines(tmp_path, b'{"prompt": "a", "%b": 1}' % name.encode())
    copied = 'of other fields, only "id" is copied to the result'
    assert line.problem == f"unknown option {name!r}; {copied}"


@pytest.mark.parametrize("name", ["x", "x.csv", "x.json"])
def test_names_that_do_not_tell_the_format(tmp_path, name):
    (tmp_path / name).write_text("a")
    with pytest.raises(InvalidArgumentError, match=r"must end in \.txt or \.jsonl"):
        count_lines(tmp_path / name)


def test_no_file(tmp_path):
    with pytest.raises(InvalidArgumentError, match="there is no file"):
        count_lines(tmp_path / "x.txt")


def test_json_is_read_as_python_does(tmp_path):
    texts = ["a", "漢\u2028", "\ud83e\udd8a 🦊", '"\\']
    found = lines(tmp_path, "\n".join(map(json.dumps, texts)))
    assert [line.prompt for line in found] == ["a", "漢\u2028", "🦊 🦊", '"\\']
