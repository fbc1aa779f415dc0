"""Reference arrays on the command line: wrong input, and files that are there already."""

import json

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
    line = ("--prompt", "ab", "--points", "logits", "-n", "2", path, "--model", folder / "model")
    assert run_here("parity", "record", *line).returncode == 0
    return path


def one_line(result, code):
    assert result.returncode == code and not result.stdout
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("gpt2np ")]
    assert "Traceback" not in result.stderr
    return line


def test_files_are_not_overwritten(folder, reference):
    before = reference.read_bytes()
    line = ("parity", "record", "--prompt", "a", "-n", "1", reference, "--model", folder / "model")
    assert "exists already; give --force" in one_line(run_here(*line), 2)
    assert reference.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate", "ab", "--exact", "--weights", "int8"), "--weights is 'int8'"),
        (("parity", "record", "{D}/none/g.safetensors"), "none does not exist"),
        (("parity", "record", "{D}/g.safetensors", "-n", "-1"), "--max-new-tokens is -1"),
    ],
)
def test_wrong_arguments(folder, arguments, message):
    words = [word.replace("{D}", str(folder)) for word in arguments]
    assert message in one_line(run_here(*words, "--model", folder / "model"), 2)
    assert not (folder / "g.safetensors").exists()


def test_reference_files_that_cannot_be_read(folder, reference):
    missing = folder / "none"
    messages = {folder: "is not a file", missing: f"cannot read {missing}: No such file"}
    for path, message in messages.items():
        assert message in one_line(run_here("parity", "check", path, reference), 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "has no token ids"),
        ({"none": [1]}, "no prompt 'none'"),
        *(
            ({"prompt0": ids}, "at least one token id")
            for ids in ([], None, {}, "x", [1.5], [True])
        ),
    ],
    ids=str,
)
def test_nothing_to_compare(folder, reference, content, message):
    (folder / "ids.json").write_text(json.dumps(content))
    assert message in one_line(run_here("parity", "check", reference, folder / "ids.json"), 2)


def test_tested_arrays(folder, reference):
    """A whole .npy file is read; damaged files are named."""
    np.savez(folder / "whole.npz", logits=np.zeros((2, 4), np.float32))
    whole = (folder / "whole.npz").read_bytes()
    for name, content in (
        ("cut.npz", whole[:-30]), ("text.npz", b"text"), ("text.npy", b"text"),
        ("empty.npy", b""), ("short.3.f32", b"1234"), ("text.safetensors", b"text"),
    ):  # fmt: skip
        (folder / name).write_bytes(content)
        line = one_line(run_here("parity", "check", reference, folder / name), 1)
        assert name in line and "pickle" not in line
    np.save(folder / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert "objects.npy is damaged" in one_line(
        run_here("parity", "check", reference, folder / "objects.npy"), 1
    )
    np.save(folder / "logits.npy", np.zeros((9, 9), np.float32))
    line = run_here("parity", "check", reference, folder / "logits.npy").stderr
    assert "logits has shape (9, 9)" in line
