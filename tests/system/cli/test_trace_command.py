"""`python -m gpt2np trace` as a user runs it."""

import json
import re

import numpy as np
import pytest
from helpers.command_line import run_here
from safetensors.numpy import load_file, save_file

from gpt2np.interp import describe_pass, lens_table, trace

FOX = "Once upon a time there was a fox"


def run(*arguments, stdin=b"", env=None):
    variables = {"GPT2NP_MODEL": "bundled", "COLUMNS": "80"} | (env or {})
    return run_here("trace", *arguments, stdin=stdin, encoding=None, **variables)


def output(*arguments, **options):
    result = run(*arguments, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout.decode()


@pytest.fixture(scope="module")
def traced(lm):
    return trace(lm, FOX)


@pytest.fixture(scope="module")
def shown():
    return output(FOX)


class TestView:
    def test_tokens_lens_attention_and_next_token(self, shown, lm, traced):
        assert shown.startswith("Once│ upon│ a │ time│ there│ was│ a │ fox")
        lens = lens_table(lm, traced, 10, last=5)
        assert f"\n{lens!r}\n" in shown
        rows = re.findall(r"^block (\d) +(\d+)→.*?@(\d+) (\d+)%", shown, re.MULTILINE)
        assert [int(row[0]) for row in rows] == [*range(6)]
        for layer, head, position, percent in (map(int, row) for row in rows):
            pattern = traced[f"blocks.{layer}.attn.pattern"][:, -1]
            assert pattern[head, position] == pattern.max()
            assert abs(100 * pattern.max() - percent) < 0.51
        told = [float(p) for p in re.findall(r"^ *([\d.]+)% '", shown, re.MULTILINE)]
        np.testing.assert_allclose(told, 100 * lens.probabilities[-1, -1], atol=0.051)

    def test_text_that_a_terminal_would_obey(self):
        text = output("a\x1b[31m\r\n\u202eb\x07 🦊 é中", "--top", "3")
        assert not set(text) & set("\x1b\r\x07\u202e") and r"\x1b" in text

    def test_a_single_token_and_an_empty_prompt(self, lm):
        assert output("a", "--top", "1").splitlines()[1] == "64"
        content = json.loads(output("", "--json", "--top", "1"))
        assert content["ids"] == [lm.bos_token_id]


class TestJson:
    def test_json_is_the_description_of_the_pass(self, lm, traced):
        content = json.loads(output(FOX, "--json", "--top", "4"))
        assert content.pop("prompt") == FOX
        assert content == json.loads(json.dumps(describe_pass(lm, traced, n=4)))

    def test_top_beyond_the_vocabulary_lists_all_tokens(self):
        content = json.loads(output("a", "--json", "--top", "9999"))
        assert len(content["next"]) == 4096
        total = sum(np.exp(entry["logprob"]) for entry in content["next"])
        assert total == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "value", "arguments"),
    [
        ("ln_f.weight", np.nan, []),
        ("ln_f.weight", np.nan, ["--json"]),
        ("h.2.attn.c_attn.weight", np.inf, ["--json"]),
    ],
)
def test_a_model_whose_logits_are_no_numbers(bundled, tmp_path, name, value, arguments):
    for file in bundled.iterdir():
        (tmp_path / file.name).symlink_to(file)
    weights = load_file(bundled / "model.safetensors")
    key = next(key for key in weights if key.endswith(name))
    weights[key].flat[3] = value
    (tmp_path / "model.safetensors").unlink()
    save_file(weights, tmp_path / "model.safetensors")
    result = run("abc", "--model", str(tmp_path), *arguments)
    message = "gpt2np trace: error: the model's logits are not numbers"
    assert (result.returncode, result.stdout) == (1, b"")
    assert message in result.stderr.decode().splitlines()[-1]
    assert f"are stored in {name}" in result.stderr.decode()
    assert "Traceback" not in result.stderr.decode() and "Warning" not in result.stderr.decode()
    generated = run_here("generate", "abc", "--model", tmp_path)
    assert (generated.returncode, generated.stdout) == (1, "abc\n")  # the error begins a line
