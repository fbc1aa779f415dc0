"""`--special error|allow|text` of every command that encodes texts."""

import json

import numpy as np
import pytest
from helpers.command_line import run_here
from helpers.random_models import random_model

from gpt2np import LanguageModel, Tokenizer

COMMANDS = {  # t.txt and t.jsonl have one text with a special token
    "tokenize": "tokenize a<|user|> --ids",
    "generate": "generate a<|user|> -n 1 --json",
    "batch": "batch t.txt --out o.jsonl -n 1",
    "score": "score t.jsonl --json",
    "encode": "encode t.jsonl o.npy",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model whose vocabulary has the special token <|user|>."""
    folder = tmp_path_factory.mktemp("special")
    (folder / "text.txt").write_text("the fox and the king " * 50)
    special = ["--special-token", "<|endoftext|>", "--special-token", "<|user|>"]
    options = ["--vocab-size", "262", *special, "--out", folder / "vocabulary"]
    assert run_here("train-tokenizer", folder / "text.txt", *options).returncode == 0
    tokenizer = Tokenizer.load(folder / "vocabulary")
    sizes = {"n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 32}
    random_model(vocab_size=tokenizer.vocab_size, **sizes).save(folder / "model")
    tokenizer.save(folder / "model")
    return LanguageModel.load(folder / "model")


def run(command, folder, lm, *options):
    (folder / "t.txt").write_text("a<|user|>")
    (folder / "t.jsonl").write_text(json.dumps({"text": "a<|user|>"}))
    words = COMMANDS[command].split()
    return run_here(*words, *options, "--model", lm.folder, folder=folder)


def n_tokens(command, result, folder):
    if command == "tokenize":
        return len(result.stdout.split())
    if command == "encode":
        return len(np.load(folder / "o.npy")) - 1
    content = json.loads((folder / "o.jsonl").read_text() if command == "batch" else result.stdout)
    return content["tokens"] if command == "score" else len(content["prompt_ids"])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_special_token_in_a_text(trained, tmp_path, command):
    plain = len(trained.tokenizer.encode("a<|user|>", disallowed_special=()))
    result = run(command, tmp_path, trained, "--special", "error")
    assert result.returncode == (1 if command == "batch" else 2) and result.stdout == ""
    assert "--special is 'error', and the text has the special token <|user|>" in result.stderr
    assert not [*tmp_path.glob("o.*")]
    result = run(command, tmp_path, trained)
    assert result.returncode == (2 if command in ("tokenize", "encode") else 0)
    warning = "warning: the text has the special token <|user|>, which is encoded as plain text"
    warning += "; to encode it as one token, set --special allow\n"
    assert (warning in result.stderr) == (command in ("generate", "batch"))
    for special, expected in (("allow", 2), ("text", plain)):
        folder = tmp_path / special
        folder.mkdir()
        result = run(command, folder, trained, "--special", special)
        assert (result.returncode, n_tokens(command, result, folder)) == (0, expected)
        assert "special token" not in result.stderr
