"""Every hook point of every layer against transformers."""

import numpy as np
import pytest
from helpers.references import load_reference, save_reference
from helpers.transformers_pass import (
    Difference,
    differences,
    transformers_arrays,
    transformers_model,
)

from gpt2np import GPT2, Tokenizer
from gpt2np.interp import hook_point_names, trace

TITLE = "hook points against transformers: largest |difference| of all layers"
SHAPES = {
    "12 layers": {"n_layer": 12, "n_embd": 48, "n_head": 2, "vocab_size": 500, "n_positions": 200},
    "7 heads": {"n_layer": 2, "n_embd": 91, "n_head": 7, "vocab_size": 300, "n_positions": 130},
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
TINY = {"vocab_size": 211, "n_positions": 48, "n_embd": 24, "n_layer": 3, "n_head": 3}


def check(name, model, reference, ids, show):
    found = differences(trace(model, ids), transformers_arrays(reference, ids))
    assert [d.point for d in found] == hook_point_names(model.config.n_layer)
    worst = max(found, key=lambda d: d.largest)
    show(
        TITLE,
        f"{name:20}{len(ids):4} tokens, {len(found)} arrays: {worst.largest:.1e} at {worst.point}, "
        f"whose numbers reach {worst.size:.3g}",
    )
    assert worst.largest < 1e-4


@pytest.mark.parametrize("name", SHAPES)
def test_random_models(name, tmp_path, show):
    reference = save_reference(tmp_path, **SHAPES[name])
    model = GPT2.from_folder(tmp_path)
    ids = np.random.default_rng(4).integers(0, model.config.vocab_size, 100)
    check(name, model, reference, ids, show)


def test_bundled_model(bundled, data, show):
    text = (data / "stories" / "valid.txt").read_text(encoding="utf-8")
    ids = Tokenizer.load(bundled).encode(text[60_000:62_000], disallowed_special=())[:300]
    check("bundled", GPT2.from_folder(bundled), load_reference(bundled), ids, show)


@pytest.mark.slow
def test_gpt2_smalls_shape(tmp_path, show):
    reference = save_reference(tmp_path, n_layer=12, spread=0.02)  # as GPT-2 is initialized
    ids = np.random.default_rng(4).integers(0, 50257, 500)
    check("124M", GPT2.from_folder(tmp_path), reference, ids, show)


@pytest.mark.parametrize("name", ["unscaled, by layer", "untied", "n_inner 100"])
def test_the_model_made_of_our_weights_is_the_one_that_was_loaded(name, tmp_path):
    reference = save_reference(tmp_path, **SHAPES[name])
    made = transformers_model(GPT2.from_folder(tmp_path))
    expected = dict(reference.named_parameters())
    for parameter, tensor in made.named_parameters():
        np.testing.assert_array_equal(tensor.detach(), expected.pop(parameter).detach())
    assert not expected
    ours, theirs = (transformers_arrays(model, [1, 2, 3]) for model in (made, reference))
    assert all(d.largest == 0 for d in differences(ours, theirs))


def test_float64_pass_has_no_error_beyond_rounding(tiny):
    model = GPT2.from_folder(tiny[0], "float64")
    theirs = transformers_arrays(transformers_model(model), [5, 6, 7])
    found = differences(trace(model, [5, 6, 7]), theirs)
    assert len(found) == len(hook_point_names(3)) and max(d.largest for d in found) < 1e-12


def test_a_wrong_weight_is_seen_where_it_is(tiny):
    model = GPT2.from_folder(tiny[0])
    other = transformers_model(model)
    name = "h.1.mlp.c_fc.bias"
    model = GPT2(model.config, {**model.weights, name: model.weights[name] + 0.01})
    found = differences(trace(model, [5, 6, 7]), transformers_arrays(other, [5, 6, 7]))
    apart = [d.point for d in found if d.largest > 1e-3]
    assert apart[0] == "blocks.1.mlp.pre" and apart[-1] == "logits"


def test_hooks_are_taken_away(tmp_path):
    def hooks():
        return sum(len(module._forward_hooks) for module in reference.modules())

    reference = save_reference(tmp_path, **TINY)
    transformers_arrays(reference, [1, 2])
    before = hooks()  # transformers leaves hooks behind after its first run
    transformers_arrays(reference, [1, 2])
    with pytest.raises(IndexError):
        transformers_arrays(reference, [211])
    assert hooks() == before < 3 * 6


def test_differences_by_hand():
    ours = {"a": np.array([1, 2.5, -3]), "b": np.zeros(2)}
    assert differences(ours, {"a": np.array([1.0, 2, -4])}) == [Difference("a", 1.0, 0.5, 4.0)]
