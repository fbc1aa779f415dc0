"""The plain context computes what the engine computes, and its hooks see the same arrays."""

import numpy as np
import pytest
from helpers.random_models import random_model

from gpt2np.errors import InvalidArgumentError
from gpt2np.interp import zero
from gpt2np.model.gpt2 import gpt2
from gpt2np.model.plain import PlainContext, plain_weights

SHAPES = {
    "odd heads": {"n_embd": 55, "n_head": 5, "n_layer": 3, "n_inner": 130},
    "erf GELU": {"n_embd": 48, "n_head": 4, "n_layer": 2, "activation_function": "gelu"},
    "by layer": {
        "n_embd": 32,
        "n_head": 2,
        "n_layer": 3,
        "scale_attn_by_inverse_layer_idx": True,
        "layer_norm_epsilon": 1e-2,
    },
}


@pytest.fixture(params=SHAPES)
def model(request):
    return random_model(np.float64, **SHAPES[request.param])


@pytest.mark.parametrize("n", [1, 2, 70])
def test_logits_and_hooked_arrays(model, n):
    ids = np.random.default_rng(n).integers(0, 1031, n)

    def record(arrays):
        return lambda name, array: arrays.setdefault(name, array)

    expected, plain = {}, {}
    logits = model.forward([ids], hook=record(expected))
    context = PlainContext(ids, model.config, record(plain))
    found = gpt2(context, plain_weights(model))
    np.testing.assert_allclose(found, logits, atol=1e-9)
    assert list(plain) == list(expected)
    for name, array in expected.items():
        assert plain[name].dtype == np.float64
        np.testing.assert_allclose(plain[name], array, atol=1e-9, err_msg=name)


def test_a_hook_must_return_an_array_of_the_same_shape(model):
    with pytest.raises(InvalidArgumentError, match=r"of shape \(3, \d+\) at embed; got: object"):
        gpt2(PlainContext([5, 6, 7], model.config, lambda name, array: None), plain_weights(model))


def test_a_hook_for_a_block_that_does_not_exist(model):
    hook = zero("blocks.7.attn.z")
    with pytest.raises(InvalidArgumentError, match="unknown hook point"):
        PlainContext([5, 6, 7], model.config, hook)
