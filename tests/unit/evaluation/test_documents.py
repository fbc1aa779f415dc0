"""Files of evaluations, and the errors for invalid files."""

import pytest

from gpt2np.errors import InvalidArgumentError
from gpt2np.evaluation.documents import read_all_documents, read_records, read_text


@pytest.fixture
def file(tmp_path):
    def write(content, name="a.txt"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.mark.parametrize(
    ("content", "documents"),
    [
        ("", []),
        ("\n", ["\n"]),
        (" \n \n = A = \n", [" \n \n = A = \n"]),
        ("one\r\ntwo\r\n", ["one\r\ntwo\r\n"]),
        ("one\n<|endoftext|>\ntwo\n", ["one", "two\n"]),
        ("\none<|endoftext|>\r\n\r\n two \r\n<|endoftext|>\n", ["\none", " two "]),
        ("<|endoftext|><|endoftext|>\n", []),
        ("\ufeffone", ["one"]),
    ],
)
def test_documents_of_a_text_file(file, content, documents):
    assert read_all_documents(file(content)) == documents


def test_documents_of_json_lines(file):
    path = file('{"text": "one\\n"}\n\n{"text": ""}\r\n{"text": "a<|endoftext|>b"}', "a.jsonl")
    assert read_all_documents(path) == ["one\n", "a<|endoftext|>b"]
    path = file('{"page": "\u2028 is no line end here"}\n', "b.jsonl")
    assert read_all_documents(path, field="page") == ["\u2028 is no line end here"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[1]", r"expected a JSON object, got \[1\]"),
        ('{"txt": "a"}', "expected a string in the field 'text'"),
        ('{"text": 5}', "expected a string in the field 'text'"),
        ('{"text": "\\ud800"}', "the field 'text' is not valid Unicode: it has a lone surrogate"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_broken_line_is_named_by_its_number(file, line, message):
    path = file('{"text": "one"}\n\n' + line + "\n", "a.jsonl")
    with pytest.raises(InvalidArgumentError, match=rf"a\.jsonl, line 3: {message}"):
        read_all_documents(path)


def test_lines_before_a_broken_one_can_be_had(file):
    records = read_records(file('{"text": "one"}\nx\n', "a.jsonl"))
    assert next(records)[1] == {"text": "one"}


def test_what_is_not_utf8(file):
    path = file(b"one\xfftwo")
    with pytest.raises(InvalidArgumentError, match=r'0xff at offset 3; .*errors="replace"'):
        read_text(path)
    assert read_text(path, "replace") == "one\ufffdtwo"


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(InvalidArgumentError, match="cannot read"):
        read_text(tmp_path / "none.txt")
    with pytest.raises(InvalidArgumentError, match="is not a file"):
        read_text(tmp_path)
