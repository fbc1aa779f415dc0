"""Logits against transformers (float32, eager attention) and against a float64 reference."""

import copy
import itertools

import numpy as np
import pytest
from helpers.logits import check_logits
from helpers.references import load_reference, reference_logits, save_reference, to_float64

from gpt2np import GPT2, Tokenizer

SMALL = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 2000}
SHAPES = {
    "1 layer": {"n_layer": 1, "n_embd": 64, "n_head": 4, "vocab_size": 997, "n_positions": 96},
    "12 layers": {"n_layer": 12, "n_embd": 48, "n_head": 2, "vocab_size": 500, "n_positions": 200},
    "7 heads": {"n_layer": 2, "n_embd": 91, "n_head": 7, "vocab_size": 300, "n_positions": 130},
    "n_inner 100": {"n_layer": 3, "n_embd": 40, "n_head": 5, "n_inner": 100, "vocab_size": 401},
    "1 head, 1 wide": {"n_layer": 2, "n_embd": 1, "n_head": 1, "vocab_size": 7, "n_positions": 9},
    "epsilon 0.1": SMALL | {"layer_norm_epsilon": 0.1},
    "unscaled": SMALL | {"scale_attn_weights": False},
    "by layer": SMALL | {"n_layer": 4, "scale_attn_by_inverse_layer_idx": True},
    "untied": SMALL | {"tie_word_embeddings": False},
    "124M's width": {"n_layer": 2, "vocab_size": 5003},
    "124M": {"n_layer": 12},
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "124M" else n for n in SHAPES]
)
def test_random_models(name, tmp_path, show):
    reference = save_reference(tmp_path, **SHAPES[name])
    model = GPT2.from_folder(tmp_path)
    rng = np.random.default_rng(1)
    config = model.config
    lengths = [1, 2, min(150, config.n_positions)]
    sequences = [rng.integers(0, config.vocab_size, length) for length in lengths]
    check_logits(name, model, reference, sequences, show)


@pytest.mark.parametrize("count", [1000, pytest.param(2000, marks=pytest.mark.slow)])
def test_bundled_model_on_held_out_text(bundled, data, show, count):
    reference = load_reference(bundled)
    text = (data / "stories" / "valid.txt").read_text(encoding="utf-8")
    ids = Tokenizer.load(bundled).encode(text[50_000:70_000], allowed_special="all")[:count]
    assert len(ids) == count
    model = GPT2.from_folder(bundled)
    sequences = [ids[i : i + 500] for i in range(0, count, 500)]
    check_logits("bundled", model, reference, sequences, show)


def test_float64_is_the_reference_to_rounding(tmp_path):
    shape = {"n_layer": 3, "n_embd": 48, "n_head": 4, "vocab_size": 300, "n_positions": 200}
    reference = save_reference(tmp_path, **shape)
    ids = np.random.default_rng(0).integers(0, 300, 200)
    ours = GPT2.from_folder(tmp_path, "float64").forward([ids])
    assert ours.dtype == np.float64
    exact = reference_logits(to_float64(copy.deepcopy(reference)), ids)
    np.testing.assert_allclose(ours, exact, atol=1e-11)


@pytest.mark.parametrize(
    ("stored", "prefix"), itertools.product(["float16", "bfloat16"], ["", "transformer."])
)
def test_half_precision_files(stored, prefix, tmp_path):
    """Weights stored in two bytes give what transformers gives with them, widened to float32."""
    import torch
    from safetensors.torch import save_file

    shape = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 300, "n_positions": 64}
    model = save_reference(tmp_path, **shape).to(getattr(torch, stored))
    tensors = {prefix + k: v.contiguous() for k, v in model.transformer.state_dict().items()}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    widened = load_reference(tmp_path)
    ids = np.random.default_rng(0).integers(0, 300, 64)
    ours = GPT2.from_folder(tmp_path).forward([ids])
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, reference_logits(widened, ids), atol=2e-5)
