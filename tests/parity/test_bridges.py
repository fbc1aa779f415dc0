"""Each row of the bridge pages runs; the other library's call, where that library is installed.

A row is | their call | our call | result |. `equal` and `rounding` compare the two results.
"""

import re
from importlib.util import find_spec
from itertools import count

import numpy as np
import pytest
from helpers.doc_examples import read_blocks
from helpers.paths import CHECKOUT

import gpt2np

PEERS = {
    "transformers": "transformers",
    "transformer_lens": "transformer_lens",
    "vllm": "vllm",
    "llama_cpp": "llama_cpp",
    "tiktoken": "tiktoken",
}
NOT_RUN = {"vllm", "llama_cpp"}  # their column; it needs a GPU, or a model as GGUF


def read(page):
    return (CHECKOUT / "docs" / "bridges" / f"{page}.md").read_text(encoding="utf-8")


def rows(page):
    """Yield (their code, our code, result) of each row that has a result."""
    for line in read(page).splitlines():
        match = re.fullmatch(r"\| `(.+)` \| `(.+)` \| ([a-z ]+) \|", line)
        if match:
            yield match[1].replace("\\|", "|"), match[2].replace("\\|", "|"), match[3]


def evaluate(code, names):
    """Return the value of an expression; run statements before the last `;`."""
    *statements, expression = code.split("; ")
    exec("\n".join(statements), names)
    return eval(expression, names)


def as_value(value):
    """Return the arrays of torch as NumPy's, completions as texts, nested arrays as lists."""
    if hasattr(value, "detach"):
        return value.detach().numpy()
    if isinstance(value, list):
        return [as_value(entry) for entry in value]
    return value.text if isinstance(value, gpt2np.Completion) else value


def as_list(value):
    """Return an array, or a sequence of arrays, as nested lists."""
    value = as_value(value)
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.fixture
def names(monkeypatch, tmp_path, data, bundled):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return {"folder": str(bundled)}


def prepare(page, names, monkeypatch, data):
    """Run the blocks before a table; return whether the other library is there."""
    ours, *theirs = read_blocks(read(page))[:2]
    exec(ours.code, names)
    has_peer = find_spec(PEERS[page]) is not None and page not in NOT_RUN
    if page == "tiktoken":
        vocabulary = data / "gpt2-tokenizer"
        load = gpt2np.Tokenizer.load
        monkeypatch.setattr(gpt2np.Tokenizer, "load", lambda name: load(vocabulary))
        import tiktoken
        from tiktoken.load import data_gym_to_mergeable_bpe_ranks

        files = [str(vocabulary / name) for name in ("merges.txt", "vocab.json")]
        encoding = tiktoken.Encoding(
            "gpt2",
            pat_str=r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
            mergeable_ranks=data_gym_to_mergeable_bpe_ranks(*files),
            special_tokens={"<|endoftext|>": 50256},
        )
        monkeypatch.setattr(tiktoken, "get_encoding", lambda name: encoding)
    if has_peer and theirs and theirs[0].reason:
        exec(theirs[0].code, names)
    return has_peer


def check_rows(page, names, has_peer):
    lines = list(rows(page))
    assert len(lines) >= 10
    for number, (theirs, ours, result) in zip(count(1), lines, strict=False):
        where = f"{page}, row {number}: {theirs}"
        assert result in ("equal", "rounding", "alike"), where
        actual = evaluate(ours, names)
        if not has_peer:
            continue
        expected = evaluate(theirs, names)
        if result == "equal":
            assert as_list(actual) == as_list(expected), where
        elif result == "rounding":
            np.testing.assert_allclose(
                as_value(actual), as_value(expected), rtol=1e-4, atol=1e-4, err_msg=where
            )


@pytest.mark.parametrize("page", PEERS)
def test_every_row_runs_and_agrees(page, names, monkeypatch, data):
    check_rows(page, names, prepare(page, names, monkeypatch, data))
