"""Checkpoints: accepted variants, rejected variants, and their error messages."""

import json
import shutil

import numpy as np
import pytest
from helpers.references import change_tensors
from helpers.stored_references import TINY

from gpt2np import GPT2, CheckpointError, GPT2Config, InvalidArgumentError
from gpt2np.checkpoint.load import read_checkpoint
from gpt2np.checkpoint.safetensors_file import read_tensors


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(TINY, tmp_path, dirs_exist_ok=True)


def change_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def test_float32_weights_are_views_of_the_file(folder):
    checkpoint = read_checkpoint(folder)
    for array in read_tensors(checkpoint.model_tensors(), np.float32).values():
        assert not array.flags.owndata and not array.flags.writeable


def test_all_problems_are_told_together(folder):
    def spoil(tensors):
        del tensors["transformer.ln_f.bias"]
        tensors["transformer.h.2.mlp.c_fc.weight"] = np.zeros((96, 24), np.float32)
        tensors["transformer.h.0.attn.rotary"] = np.zeros(3, np.float32)
        tensors["transformer.h.1.ln_1.bias"] = np.zeros(24, np.int64)

    change_tensors(folder, spoil)
    with pytest.raises(CheckpointError) as error:
        GPT2.from_folder(folder)
    message = str(error.value)
    assert "ln_f.bias is missing" in message and "more" not in message
    assert "h.0.attn.rotary is unexpected" in message
    assert "h.2.mlp.c_fc.weight has shape (96, 24), expected (24, 96)" in message
    assert "h.1.ln_1.bias has dtype I64, expected one of F64, F32, F16, BF16" in message
    assert "\n" not in message


def test_many_problems_are_counted(folder):
    change_tensors(folder, lambda tensors: [tensors.pop(name) for name in list(tensors)[:10]])
    with pytest.raises(CheckpointError, match="and 4 more; list them with 'gpt2np info'"):
        GPT2.from_folder(folder)


def test_a_pointer_of_git_lfs(folder):
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n"
    (folder / "model.safetensors").write_text(text)
    with pytest.raises(CheckpointError, match=r"is a Git LFS pointer.* git lfs pull"):
        GPT2.from_folder(folder)


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_data_that_begins_at_an_odd_place_is_copied(folder, shift):
    """Like the Hub's gpt2, written by an early version of safetensors."""
    before = GPT2.from_folder(folder).forward([[1, 2, 3]])
    path = folder / "model.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + size].rstrip() + b" " * shift
    header += b" " * ((shift - len(header)) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + size :])
    model = GPT2.from_folder(folder)
    assert all(array.flags.aligned for array in model.weights.values())
    np.testing.assert_array_equal(model.forward([[1, 2, 3]]), before)


@pytest.mark.parametrize("dtype", ["int32", "float16", "bfloat16"])
def test_dtype_other_than_float32_and_float64_is_refused(folder, dtype):
    with pytest.raises(InvalidArgumentError, match=f"dtype is '{dtype}'"):
        GPT2.from_folder(folder, dtype)


def test_a_name_is_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"no folder bundled; to load a model by name, call gpt2np\.load"
    ):
        GPT2.from_folder("bundled")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"activation_function": ["relu"]}, "activation_function is .'relu'., expected one of"),
        ({"hidden_size": "24"}, "hidden_size is '24', expected an integer"),
        ({"is_causal": False}, "is_causal is False; gpt2np supports only true"),
        ({"add_cross_attention": True}, "add_cross_attention is True"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}; gpt2np"),
        ({"n_head": 5}, r"n_embd \(24\) must be a multiple of n_head \(5\)"),
        ({"n_layer": "3"}, "n_layer is '3', expected an integer from 1"),
        ({"n_layer": 2}, "n_layer is 2, but 3 blocks are stored"),
        ({"n_layer": True}, "n_layer is True"),
        ({"n_embd": {"z" * 100_000: 1}}, "n_embd is {'zzz"),
        ({"layer_norm_epsilon": float("nan")}, "layer_norm_epsilon is nan"),
        ({"layer_norm_epsilon": 10**400}, "layer_norm_epsilon is 1000"),
        ({"eos_token_id": "x"}, "eos_token_id is 'x'"),
        ({"tie_word_embeddings": False}, "lm_head.weight is missing"),
        ({"layer_norm_epsilon": "tiny"}, "layer_norm_epsilon is 'tiny', expected a number"),
        ({"scale_attn_weights": 1}, "scale_attn_weights is 1, expected true or false"),
        ({"n_layer": 4}, "n_layer is 4, but 3 blocks are stored; h.3.ln_1.weight is missing"),
        ({"vocab_size": 999}, r"wte.weight has shape \(211, 24\), expected \(999, 24\)"),
    ],
)
def test_config_that_does_not_fit(folder, changes, message):
    change_config(folder, **changes)
    with pytest.raises(CheckpointError, match=message) as error:
        GPT2.from_folder(folder)
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize("content", ["{", "[]", "\xff", "[" * 200_000])
def test_damaged_config(folder, content):
    (folder / "config.json").write_text(content, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"config\.json is damaged"):
        GPT2.from_folder(folder)


def test_defaults_and_aliases_are_those_of_transformers():
    from transformers import GPT2Config as Reference

    ours, theirs = GPT2Config(), Reference()
    for name in GPT2Config.__dataclass_fields__:
        if name not in ("n_inner", "eos_token_ids"):
            assert getattr(ours, name) == getattr(theirs, name), name
    aliases = {"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 5}
    aliases["max_position_embeddings"] = 77
    ours, theirs = GPT2Config.from_mapping(aliases), Reference(**aliases)
    for name in ("n_embd", "n_head", "n_layer", "n_positions"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.n_inner == 48 and GPT2Config(n_embd=5).n_inner == 20
    assert GPT2Config.from_mapping({"n_inner": None, "intermediate_size": 7}).n_inner == 7
    assert GPT2Config.from_mapping({"eos_token_id": 3}).eos_token_ids == (3,)
    assert GPT2Config.from_mapping({"eos_token_id": [1, 2]}).eos_token_ids == (1, 2)


def test_an_untied_head_is_no_embedding(folder):
    change_tensors(folder, lambda t: t.update({"lm_head.weight": t.pop("transformer.wte.weight")}))
    change_config(folder, tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"wte\.weight is missing"):
        GPT2.from_folder(folder)
