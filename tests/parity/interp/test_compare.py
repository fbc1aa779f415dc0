"""Every hook point of every layer, and an added vector, against transformers."""

import numpy as np
import pytest
from helpers.peers import torch
from helpers.references import load_reference, save_reference
from helpers.transformers_pass import transformers_arrays, transformers_model

import gpt2np
from gpt2np import GPT2, Tokenizer
from gpt2np.interp import add, hook_point_names, trace

SHAPES = {
    "12 layers": {"n_layer": 12, "n_embd": 48, "n_head": 2, "vocab_size": 500, "n_positions": 200},
    "n_inner 100": {"n_layer": 3, "n_embd": 40, "n_head": 5, "n_inner": 100, "vocab_size": 401},
    "unscaled, by layer": {
        "n_layer": 4,
        "n_embd": 32,
        "n_head": 2,
        "scale_attn_weights": False,
        "scale_attn_by_inverse_layer_idx": True,
        "activation_function": "gelu",
        "layer_norm_epsilon": 0.1,
    },
    "untied": {"n_layer": 2, "n_embd": 32, "n_head": 2, "tie_word_embeddings": False},
}


def check(model, reference, ids, most=1e-4):
    ours, theirs = trace(model, ids), transformers_arrays(reference, ids)
    assert list(ours) == hook_point_names(model.config.n_layer)
    assert max(np.abs(array - theirs[name]).max() for name, array in ours.items()) < most


@pytest.mark.parametrize("name", SHAPES)
def test_random_models(name, tmp_path):
    reference = save_reference(tmp_path, **SHAPES[name])
    model = GPT2.from_folder(tmp_path)
    ids = np.random.default_rng(4).integers(0, model.config.vocab_size, 100)
    check(model, reference, ids)


def test_bundled_model(bundled, data):
    text = (data / "stories" / "valid.txt").read_text(encoding="utf-8")
    ids = Tokenizer.load(bundled).encode(text[60_000:62_000], disallowed_special=())[:300]
    check(GPT2.from_folder(bundled), load_reference(bundled), ids)


def test_float64_pass_has_no_error_beyond_rounding(tiny):
    model = GPT2.from_folder(tiny[0], "float64")
    check(model, transformers_model(model), [5, 6, 7], 1e-12)


def test_an_added_vector_equals_a_forward_hook():
    model = gpt2np.load("bundled").model
    ids, vector = [5, 60, 700, 8], np.random.default_rng(0).normal(size=256).astype(np.float32)
    reference = transformers_model(model)

    def steer(module, inputs, output):
        hidden = output[0] if isinstance(output, tuple) else output
        hidden[:, [1, 3]] += torch.tensor(vector)
        return output

    reference.transformer.h[2].register_forward_hook(steer)
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0].numpy()
    hook = add("blocks.2.resid", vector, positions=[1, 3])
    found = trace(model, ids, "logits", interventions=hook)["logits"]
    assert np.abs(expected - model.forward([ids])).max() > 0.1
    np.testing.assert_allclose(found, expected, atol=2e-4)
