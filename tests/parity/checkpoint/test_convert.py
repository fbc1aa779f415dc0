"""Converted and saved models: what transformers makes of the result, what is refused."""

import json
import shutil
import tracemalloc

import numpy as np
import pytest
from helpers.peers import safetensors, torch
from helpers.references import load_reference, reference_logits, save_reference

import gpt2np
from gpt2np import GPT2, CheckpointError, InvalidArgumentError
from gpt2np.checkpoint.convert import convert
from gpt2np.checkpoint.load import read_checkpoint

SHAPE = {"vocab_size": 211, "n_positions": 48, "n_embd": 24, "n_layer": 3, "n_head": 3}
IDS = np.random.default_rng(5).integers(0, 211, 40)


def converted(folder, target, **options):
    return convert(read_checkpoint(folder), target, **options)


def change_tensors(folder, change):
    file = folder / "model.safetensors"
    tensors = safetensors.load_file(file)
    safetensors.save_file(change(tensors) or tensors, file, {"format": "pt"})


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", None])
@pytest.mark.parametrize("tied", [True, False])
def test_transformers_reads_what_it_would_have_written(dtype, tied, tmp_path):
    """Every tensor is rounded like torch, and gpt2np and transformers give the same logits."""
    from transformers import GPT2LMHeadModel

    source = save_reference(tmp_path / "a", **SHAPE, tie_word_embeddings=tied)
    converted(tmp_path / "a", tmp_path / "b", dtype=dtype)
    expected = source.to(getattr(torch, dtype or "float32"))
    loaded, info = GPT2LMHeadModel.from_pretrained(
        tmp_path / "b", dtype="auto", attn_implementation="eager", output_loading_info=True
    )
    assert not any(info.values())
    assert loaded.dtype == expected.dtype
    for name, tensor in expected.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    ours = GPT2.from_folder(tmp_path / "b").forward([IDS])
    theirs = reference_logits(loaded.eval().float(), IDS)
    np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_any_names_become_those_of_transformers(tiny, tmp_path):
    """torch.compile's prefix, masks, aliases in the config."""
    folder = tmp_path / "a"
    shutil.copytree(tiny[0], folder)

    def export(tensors):
        renamed = {f"_orig_mod.{name}": tensor for name, tensor in tensors.items()}
        return renamed | {"_orig_mod.transformer.h.0.attn.bias": torch.ones(1, 1, 48, 48)}

    change_tensors(folder, export)
    config = json.loads((folder / "config.json").read_text())
    config["hidden_size"] = config.pop("n_embd")
    (folder / "config.json").write_text(json.dumps(config))
    converted(folder, tmp_path / "b")
    before = safetensors.load_file(tiny[0] / "model.safetensors")
    after = safetensors.load_file(tmp_path / "b" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert json.loads((tmp_path / "b" / "config.json").read_text())["n_embd"] == 24


def test_a_head_that_equals_the_embedding_is_not_stored(tiny, tmp_path):
    folder = tmp_path / "a"
    shutil.copytree(tiny[0], folder)
    change_tensors(folder, lambda t: t.update({"lm_head.weight": t["transformer.wte.weight"] + 0}))
    converted(folder, tmp_path / "b")
    after = safetensors.load_file(tmp_path / "b" / "model.safetensors")
    assert "lm_head.weight" not in after
    converted(tiny[0], tmp_path / "c")
    assert safetensors.load_file(tmp_path / "c" / "model.safetensors").keys() == after.keys()


def test_rounding_to_bfloat16_is_torchs_over_all_kinds_of_numbers():
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint64).astype(np.uint32)
    x = np.concatenate([bits, (bits & 0xFFFF0000) | 0x8000]).view(np.float32)  # includes ties
    x = x[np.abs(x) < 3.38e38]
    from gpt2np.checkpoint.safetensors_file import _to_bfloat16

    expected = torch.tensor(x).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(_to_bfloat16(x), expected)
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)
    assert _to_bfloat16(special).tolist() == [0x7FC0, 0x7F80, 0xFF80, 0, 0x8000]


@pytest.mark.parametrize(("dtype", "number"), [("float16", 70_000.0), ("bfloat16", 3.4e38)])
def test_numbers_too_large_are_refused_and_nothing_stays(tiny, tmp_path, dtype, number):
    folder = tmp_path / "a"
    shutil.copytree(tiny[0], folder)
    change_tensors(folder, lambda t: t.update({"transformer.ln_f.bias": torch.full((24,), number)}))
    with pytest.raises(CheckpointError, match=r"ln_f\.bias has values too large for"):
        converted(folder, tmp_path / "b", dtype=dtype)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_numbers_that_are_not_finite_are_kept(tiny, tmp_path):
    folder = tmp_path / "a"
    shutil.copytree(tiny[0], folder)

    def spoil(tensors):
        tensors["transformer.ln_f.bias"][3] = float("nan")
        tensors["transformer.wpe.weight"][2, 5] = -float("inf")

    change_tensors(folder, spoil)
    for dtype in ("bfloat16", "float64"):
        converted(folder, tmp_path / dtype, dtype=dtype)
        after = safetensors.load_file(tmp_path / dtype / "model.safetensors")
        assert after["transformer.ln_f.bias"][3].isnan()
        assert after["transformer.wpe.weight"][2, 5] == -float("inf")


def test_an_existing_folder_is_left_alone(tiny, tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "file").touch()
    (tmp_path / "c").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InvalidArgumentError, match="already exists"):
        converted(tiny[0], tmp_path / "c")
    with pytest.raises(InvalidArgumentError, match="already exists"):
        converted(tiny[0], tmp_path / "b")
    with pytest.raises(InvalidArgumentError, match="already exists"):
        converted(tiny[0], tiny[0])


def test_an_empty_folder_is_filled(tiny, tmp_path):
    (tmp_path / "b").mkdir()
    converted(tiny[0], tmp_path / "b")
    assert GPT2.from_folder(tmp_path / "b") and len(list(tmp_path.iterdir())) == 1


def test_what_transformers_would_refuse_in_the_config_is_put_right(tiny, tmp_path):
    from transformers import GPT2LMHeadModel

    folder = tmp_path / "a"
    shutil.copytree(tiny[0], folder)
    config = json.loads((folder / "config.json").read_text())
    odd = {"layer_norm_epsilon": None, "scale_attn_weights": None, "quantization_config": {}}
    (folder / "config.json").write_text(json.dumps(config | odd | {"my_own": [1]}))
    converted(folder, tmp_path / "b")
    GPT2LMHeadModel.from_pretrained(tmp_path / "b")
    written = json.loads((tmp_path / "b" / "config.json").read_text())
    assert written["my_own"] == [1] and written["eos_token_id"] == config["eos_token_id"]


def test_companions_but_none_from_elsewhere(tiny, tmp_path):
    folder = tmp_path / "cache" / "snapshots" / "a"
    shutil.copytree(tiny[0], folder)
    (tmp_path / "secret.txt").write_text("secret")
    blobs = tmp_path / "cache" / "blobs"
    blobs.mkdir()
    (blobs / "0123").write_text("merges")
    (folder / "README.md").symlink_to(tmp_path / "secret.txt")
    (folder / "merges.txt").symlink_to("../../blobs/0123")
    (folder / "LICENSE.txt").write_text("MIT")
    (folder / "other.txt").write_text("x")
    converted(folder, tmp_path / "b")
    copied = {file.name: file for file in (tmp_path / "b").iterdir()}
    files = {path.name for path in tiny[0].iterdir()}
    assert copied.keys() == files | {"merges.txt", "LICENSE.txt"}
    assert copied["merges.txt"].read_text() == "merges" and not copied["merges.txt"].is_symlink()


def test_no_more_than_a_matrix_is_in_memory(tmp_path):
    save_reference(tmp_path / "a", **SHAPE | {"n_embd": 192, "n_layer": 30})  # 53 MB
    tracemalloc.start()
    converted(tmp_path / "a", tmp_path / "b", dtype="float16")
    assert tracemalloc.get_traced_memory()[1] < 10e6
    tracemalloc.stop()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("tied", [True, False])
def test_transformers_loads_an_edited_model(tmp_path, dtype, tied):
    end = [3, 7] if tied else 3
    save_reference(tmp_path / "a", **SHAPE, tie_word_embeddings=tied, eos_token_id=end)
    model = GPT2.from_folder(tmp_path / "a", dtype)
    name = "h.1.attn.c_attn.weight"
    model = GPT2(model.config, {**model.weights, name: model.weights[name] * 1.5})
    model.save(tmp_path / "b")
    again = GPT2.from_folder(tmp_path / "b", dtype)
    assert again.config == model.config and again.weights.keys() == model.weights.keys()
    for name, array in model.weights.items():
        assert np.array_equal(again.weights[name], array), name
    ours = model.forward([IDS])
    assert np.array_equal(
        again.forward([IDS]), GPT2.from_folder(tmp_path / "b", dtype).forward([IDS])
    )
    theirs = load_reference(tmp_path / "b", dtype)
    assert theirs.config.eos_token_id == end and str(theirs.dtype) == f"torch.{dtype}"
    np.testing.assert_allclose(ours, reference_logits(theirs, IDS), rtol=1e-4, atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_with_its_vocabulary_it_is_a_whole_model(lm, tmp_path):
    lm.model.save(tmp_path / "b")
    lm.tokenizer.save(tmp_path / "b")
    options = {"max_new_tokens": 20, "seed": 1}
    again = gpt2np.load(tmp_path / "b")
    assert again.generate("The king", **options).ids == lm.generate("The king", **options).ids
    assert again.eos_token_ids == lm.eos_token_ids
