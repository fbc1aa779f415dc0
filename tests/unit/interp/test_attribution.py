"""Direct logit attribution: components add up to the logit and match their formulas."""

import numpy as np
import pytest
from helpers.random_models import random_model

from gpt2np import GPT2, InvalidArgumentError
from gpt2np.interp import attribution, trace

SHAPES = {
    "n_inner 100": {"n_layer": 3, "n_embd": 40, "n_head": 5, "n_inner": 100, "vocab_size": 401},
    "untied": {"n_layer": 2, "n_embd": 32, "n_head": 2, "tied": False},
    "epsilon 0.1": {"n_layer": 2, "n_embd": 32, "n_head": 2, "layer_norm_epsilon": 0.1},
}


def largest_unexplained(model, kept, tokens):
    errors = []
    for position in range(0, len(kept.ids), 5):
        found = attribution(model, kept, tokens, position)
        np.testing.assert_array_equal(found.logits, kept["logits"][position, tokens])
        errors.append(np.abs(found.logits - found.values.sum(0)).max())
    return max(errors)


@pytest.mark.parametrize("name", SHAPES)
def test_the_parts_add_up_in_random_models(name):
    model = random_model(**SHAPES[name])
    ids = np.random.default_rng(2).integers(0, model.config.vocab_size, 30)
    assert largest_unexplained(model, trace(model, ids), list(range(0, 300, 7))) < 1e-4


def test_and_in_the_bundled_model_for_every_token(bundled):
    model = GPT2.from_folder(bundled)
    ids = np.random.default_rng(2).integers(0, 4096, 40)
    assert largest_unexplained(model, trace(model, ids), list(range(4096))) < 1e-4


def test_each_part_is_its_vector_through_the_frozen_layer_norm(model, traced):
    found = attribution(model, traced, [9, 10], position=12)
    values = dict(zip(found.components, found.values, strict=True))
    w, x = model.weights, traced["blocks.2.resid"][12].astype(np.float64)
    deviation = np.sqrt(((x - x.mean()) ** 2).mean() + 1e-5)

    def adds(vector):
        centered = vector - vector.mean()
        return (centered / deviation * w["ln_f.weight"]) @ w["wte.weight"][[9, 10]].T

    head = traced["blocks.1.attn.z"][2, 12] @ w["h.1.attn.c_proj.weight"][16:24]
    mlp = traced["blocks.2.mlp.out"][12] - w["h.2.mlp.c_proj.bias"]
    for part, vector in {
        "wte": w["wte.weight"][traced.ids[12]],
        "wpe": w["wpe.weight"][12],
        "blocks.1.attn.head.2": head,
        "blocks.1.attn.c_proj.bias": w["h.1.attn.c_proj.bias"],
        "blocks.2.mlp": mlp,
        "blocks.2.mlp.c_proj.bias": w["h.2.mlp.c_proj.bias"],
    }.items():
        np.testing.assert_allclose(values[part], adds(vector), atol=1e-5, err_msg=part)
    bias = w["ln_f.bias"] @ w["wte.weight"][[9, 10]].T
    np.testing.assert_allclose(values["ln_f.bias"], bias, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": 211}, "id 211 is not in the model's vocabulary of 211"),
        ({"tokens": []}, "no ids"),
        ({"tokens": [[1, 2]]}, "each sequence"),
        ({"tokens": 1.5}, "each sequence"),
        ({"tokens": 1, "position": 30}, "position is 30; it must be the index of one of 30 tokens"),
    ],
)
def test_bad_input(model, traced, arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        attribution(model, traced, **arguments)
    with pytest.raises(InvalidArgumentError, match=r"lacks blocks\.0\.attn\.z"):
        attribution(model, trace(model, traced.ids, ["embed", "logits"]), 1)
