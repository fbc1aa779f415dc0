"""`python -m gpt2np tokenize` as a user runs it."""

import json
import os
import re
import subprocess
import sys

import pytest
from helpers.command_line import run_here

EOT = "<|endoftext|>"
TEXT = "GPT2 was created by OpenAI"
TRICKY = " na\u00efve 😀\u200d日本\t\x1b[31m'll  \n\n x"


def tokenize(*arguments, stdin=b"", model="bundled", env=None):
    chosen = [] if model is None else ["--model", str(model)]
    variables = {"COLUMNS": "80"} | (env or {})
    return run_here("tokenize", *arguments, *chosen, stdin=stdin, encoding=None, **variables)


@pytest.fixture(scope="module")
def output(gpt2_vocabulary):
    """output(*arguments): what is printed, with GPT-2's vocabulary."""

    def run(*arguments, model=gpt2_vocabulary, **options):
        result = tokenize(*arguments, model=model, **options)
        assert result.returncode == 0, result.stderr
        return result.stdout.decode()

    return run


@pytest.fixture(scope="module")
def peer(gpt2_vocabulary):
    files = (str(gpt2_vocabulary / name) for name in ("vocab.json", "merges.txt"))
    return pytest.importorskip("tokenizers").ByteLevelBPETokenizer(*files)


class TestOutput:
    def test_tokens_over_their_ids(self, gpt2_vocabulary):
        result = tokenize(TEXT, model=gpt2_vocabulary)
        assert result.stdout.decode().splitlines() == [
            "G │PT   │2 │ was│ created│ by│ Open│AI   ",
            "38│11571│17│373 │2727    │416│4946 │20185",
        ]
        assert result.stderr.decode() == f"vocabulary: {gpt2_vocabulary}\n"

    def test_the_name_of_a_file_is_tokenized_with_a_warning(self, bundled):
        result = tokenize("--count", str(bundled / "config.json"), "a" * 5000)
        assert result.returncode == 0 and len(result.stdout.split()) == 2
        assert result.stderr.count(b"the text is the name of a file; to read it: < ") == 1

    def test_ids_and_counts_are_those_of_tokenizers(self, output, peer, data):
        texts = [TEXT, TRICKY, "", "x"]
        ids = [peer.encode(text).ids for text in texts]
        assert output(*texts, "--ids") == "".join(" ".join(map(str, i)) + "\n" for i in ids)
        assert output(*texts, "--count") == "".join(f"{len(i)}\n" for i in ids)
        file = data / "text" / "UTF-8-demo.txt"
        expected = peer.encode(file.read_text(encoding="utf-8")).ids
        assert output("--ids", stdin=file.read_bytes() + b"\n").split() == [
            str(i) for i in expected
        ]

    def test_json(self, output, peer):
        first, second = map(json.loads, output(TRICKY, "a", "--json").splitlines())
        expected = peer.encode(TRICKY)
        assert (first["text"], second["text"]) == (TRICKY, "a")
        assert first["ids"] == expected.ids
        assert first["tokens"][:3] == [" naïve", r" \xf0\x9f\x98", r"\x80"]
        assert first["byte_offsets"][:3] == [[0, 7], [7, 11], [11, 12]]
        assert first["offsets"][:3] == [[0, 6], [6, 8], [7, 8]]
        joined = b"".join(TRICKY.encode()[a:b] for a, b in first["byte_offsets"])
        assert joined == TRICKY.encode()

    def test_merges(self, gpt2_vocabulary):
        result = tokenize(TEXT, "--merges", model=gpt2_vocabulary)
        blocks = result.stdout.decode().rstrip("\n").split("\n\n")
        titles = ['"GPT"', '"2"', '" was"', '" created"', '" by"', '" OpenAI"']
        assert [block.split(" → ")[0] for block in blocks] == titles
        assert blocks[0].splitlines()[:3] == [
            '"GPT" → 38 11571',
            "  G       P       T",
            "    16704  [11315]",
        ]
        assert "merged next" in result.stderr.decode()

    def test_standard_input(self, output):
        expected = output("a b", "--ids")
        for end in (b"", b"\n", b"\r\n"):
            assert output("--ids", stdin=b"a b" + end) == expected
            assert output("-", "--ids", stdin=b"a b" + end) == expected
        assert output("x", "-", "--count", stdin=b"a b\n\n") == "1\n3\n"

    def test_the_bundled_vocabulary(self, output, bundled):
        named = output(TEXT, "--ids", model="bundled")
        assert named == output(TEXT, "--ids", model=bundled / "vocab.json")
        assert named == output(TEXT, "--ids", model=None, env={"GPT2NP_MODEL": "bundled"})
        assert named != output(TEXT, "--ids")


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
class TestColor:
    def on_a_terminal(self, *arguments, **env):
        import pty

        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "gpt2np", "tokenize", *arguments, "--model", "bundled"]
        variables = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | env
        with subprocess.Popen(command, stdout=theirs, env=variables, stderr=subprocess.PIPE):
            os.close(theirs)
            shown = b""
            try:
                while data := os.read(ours, 4096):
                    shown += data
            except OSError:  # Linux says so when the other end is closed
                pass
        os.close(ours)
        return shown.decode()

    def test_only_on_a_terminal_and_not_with_no_color(self):
        colored = self.on_a_terminal("The cat", "--merges")
        plain = self.on_a_terminal("The cat", "--merges", NO_COLOR="1")
        assert "\x1b[" in colored and "\x1b" not in plain
        assert "\x1b" not in tokenize("The cat", "--merges").stdout.decode()
        bare = re.sub(r"\x1b\[[\d;]*m", "", colored)
        assert bare.split() == plain.replace("│", " ").split()

    def test_never_in_what_programs_read(self):
        shown = self.on_a_terminal("The cat", "--json")
        assert shown.replace("\r\n", "\n").encode() == tokenize("The cat", "--json").stdout != b""


def test_a_character_that_a_vocabulary_lacks(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, []))
    model.save(str(tmp_path / "tokenizer.json"))
    result = tokenize("abc", model=tmp_path)
    assert (result.returncode, result.stdout) == (2, b"")
    message = "gpt2np tokenize: error: the character 'c' is not in the vocabulary"
    assert result.stderr.decode().startswith(message)
