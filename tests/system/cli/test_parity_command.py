"""Reference arrays on the command line: wrong input, and files that are there already."""

import numpy as np
import pytest
from helpers.command_line import run_here
from helpers.random_models import save_byte_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parity")
    save_byte_model(folder / "model")
    return folder


@pytest.fixture(scope="module")
def reference(folder):
    path = folder / "reference.safetensors"
    line = ("--prompt", "ab", "--points", "logits", path, "--model", folder / "model")
    assert run_here("parity", "record", *line).returncode == 0
    return path


def one_line(result, code):
    assert result.returncode == code and not result.stdout
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("gpt2np ")]
    assert "Traceback" not in result.stderr
    return line


@pytest.mark.parametrize("name", ["gone.npz", "gone.safetensors"])
def test_tested_file_that_does_not_exist(folder, reference, name):
    line = one_line(run_here("parity", "check", reference, folder / name), 1)
    assert name in line and ("No such file" in line or "is missing" in line)


def test_tested_arrays(folder, reference):
    """Damaged files are named."""
    np.savez(folder / "whole.npz", logits=np.zeros((2, 4), np.float32))
    whole = (folder / "whole.npz").read_bytes()
    for name, content in (
        ("cut.npz", whole[:-30]), ("text.npz", b"text"), ("empty.npz", b""),
        ("text.safetensors", b"text"),
    ):  # fmt: skip
        (folder / name).write_bytes(content)
        line = one_line(run_here("parity", "check", reference, folder / name), 1)
        assert name in line and "pickle" not in line
    np.savez(folder / "logits.npz", logits=np.zeros((9, 9), np.float32))
    line = run_here("parity", "check", reference, folder / "logits.npz").stderr
    assert "logits has shape (9, 9)" in line
