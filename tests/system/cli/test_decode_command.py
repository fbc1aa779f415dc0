"""`gpt2np decode`: ids on the command line and on stdin."""

import json

import pytest
from helpers.command_line import run_here

TEXTS = ["GPT2 was 🦊", "", " two  spaces"]


def run(command, *arguments, stdin=""):
    return run_here(command, *arguments, stdin=stdin, GPT2NP_MODEL="bundled")


def decode(*arguments, stdin=""):
    result = run("decode", *arguments, stdin=stdin)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def ids():
    """The ids of TEXTS, one line each, as `tokenize --ids` prints them."""
    return run("tokenize", "--ids", *TEXTS).stdout


def test_arguments_are_one_text(ids):
    assert decode(*ids.splitlines()[0].split()) == TEXTS[0] + "\n"


def test_each_line_of_stdin_is_a_text(ids):
    expected = "".join(f"{text}\n" for text in TEXTS)
    assert decode(stdin=ids) == decode("-", stdin=ids) == expected
    assert decode(stdin=ids.replace(" ", ", ")) == expected


def test_an_id_beyond_the_vocabulary_is_an_error():
    result = run("decode", "5", "4096")
    assert result.returncode == 2 and not result.stdout
    assert "no token has the id 4096; the ids are 0 to 4095" in result.stderr


def test_special_tokens():
    (eot,) = json.loads(run("tokenize", "--special", "allow", "--json", "<|endoftext|>").stdout)[
        "ids"
    ]
    assert decode("5", str(eot)) == "&<|endoftext|>\n"


class TestTokenizerOption:
    @pytest.fixture
    def folder(self, bundled, tmp_path):
        """The bundled model without its vocabulary."""
        for name in ("config.json", "model.safetensors"):
            (tmp_path / name).symlink_to(bundled / name)
        return str(tmp_path)

    def test_it_takes_the_vocabulary_from_elsewhere(self, folder):
        options = ["Once upon a time", "--model", folder, "-n", "8", "--greedy"]
        result = run("generate", *options, "--tokenizer", "bundled")
        assert result.returncode == 0, result.stderr
        assert result.stdout == run("generate", *options[:1], *options[3:]).stdout

    def test_the_error_without_it_names_it(self, folder):
        result = run("generate", "Once", "--model", folder)
        assert result.returncode == 1 and "has no vocabulary" in result.stderr
        assert result.stderr.endswith('another vocabulary, such as "gpt2"\n')
