"""`gpt2np info` as a user runs it: what it tells of good, odd and damaged models."""

import json
import math
import shutil

import numpy as np
import pytest
from helpers.command_line import run_here
from helpers.references import change_tensors
from helpers.stored_references import TINY
from safetensors.numpy import load_file

from gpt2np.checkpoint.config import weight_shapes
from gpt2np.model import GPT2Config


def info(*arguments):
    return run_here("info", *arguments)


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(TINY, tmp_path, dirs_exist_ok=True)


def test_of_the_bundled_model(bundled):
    result = info("bundled", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    content = json.loads(result.stdout)
    assert content["folder"] == str(bundled)
    stored = load_file(bundled / "model.safetensors")
    assert content["parameters"] == sum(array.size for array in stored.values()) == 5_918_720
    told = {tensor["name"]: tensor for tensor in content["tensors"]}
    for name, array in stored.items():
        tensor = told.pop(name.removeprefix("transformer."))
        assert (tensor["shape"], tensor["dtype"]) == (list(array.shape), "F16")
        assert tensor["bytes"] == array.nbytes and tensor["file"] == "model.safetensors"
    assert not told and not content["problems"]
    assert content["memory"] == {
        "float32_weights": 4 * 5_918_720,
        "float32_kv_cache": 2 * 6 * 512 * 256 * 4,
    }


def test_as_text(bundled):
    lines = info("bundled").stdout.splitlines()
    for line in (
        "parameters                      5,918,720",
        "float32_weights                 23,674,880",
        "n_head                          4",
        "h.5.mlp.c_proj.weight           1024 × 256      F16           524,288",
    ):
        assert line in lines


def header_alone(folder, **shape):
    """A checkpoint of which only the header is there: the numbers are a hole in the file."""
    config = GPT2Config(**shape)
    header, at = {}, 0
    for name, size in weight_shapes(config).items():
        end = at + 4 * math.prod(size)
        header[name] = {"dtype": "F32", "shape": size, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    content = {"model_type": "gpt2", **shape}
    (folder / "config.json").write_text(json.dumps(content))
    return len(header), at


def test_the_numbers_of_a_model_larger_than_any_memory_are_not_read(tmp_path):
    _, size = header_alone(tmp_path, n_layer=96, n_embd=12288, n_head=96)
    content = json.loads(info(tmp_path, "--json").stdout)  # it may take two minutes
    assert size > 690e9 and content["parameters"] == size // 4 and not content["problems"]


def test_what_does_not_fit_is_listed_in_full(folder):
    change_tensors(folder, lambda tensors: [tensors.pop(name) for name in list(tensors)[:20]])
    result = info(folder)
    (line,) = result.stderr.splitlines()
    told = "gpt2np info: error: the weights do not fit the config: n_layer is 3, but 2 blocks"
    assert result.returncode == 1 and line.startswith(told)
    assert sum(line.endswith(" is missing") for line in result.stdout.splitlines()) == 20
    problems = json.loads(info(folder, "--json").stdout)["problems"]
    assert len(problems) == 21 and problems[0] == "n_layer is 3, but 2 blocks are stored"


def test_hostile_names_for_the_terminal(folder):
    change_tensors(folder, lambda t: t.update({"evil\x1b[2J\nline": np.zeros(3, np.float32)}))
    result = info(folder)
    assert result.returncode == 1 and "evil\\x1b[2J\\nline" in result.stdout
    assert "\x1b" not in result.stdout


def test_a_stored_head_that_is_tied_is_no_parameter(folder):
    before = json.loads(info(folder, "--json").stdout)
    change_tensors(folder, lambda t: t.update({"lm_head.weight": t["transformer.wte.weight"]}))
    after = json.loads(info(folder, "--json").stdout)
    assert after["parameters"] == before["parameters"] and after["memory"] == before["memory"]
    assert (before["stored_head"], after["stored_head"]) == (0, 211 * 24)
