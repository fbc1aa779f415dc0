"""Without --model and without a network, only commands that show texts use the bundled model."""

import pytest
from helpers.command_line import run_here


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """A folder with inputs; GPT-2 is not cached, and there is no network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GPT2NP_MODEL", raising=False)
    (tmp_path / "t.txt").write_text("one two\n")
    (tmp_path / "ids.bin").write_bytes(bytes(100))
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "encode t.txt o.bin",
        "score t.txt",
        "batch t.txt --out o.jsonl",
        "tokenize one",
        "decode 5",
        "train ids.bin out",
        "parity record g.safetensors",
    ],
)
def test_a_command_that_writes_numbers_asks_for_a_model(offline, command):
    result = run_here(*command.split(), folder=offline)
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"gpt2np {command.split()[0]}: error: ")
    assert line.endswith("; name a model, as in --model bundled")
    assert sorted(path.name for path in offline.iterdir()) == ["ids.bin", "t.txt"]
