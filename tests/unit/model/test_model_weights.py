"""Weights: reading, checks and packing."""

import copy
import pickle

import numpy as np
import pytest

from gpt2np import GPT2, InvalidArgumentError
from gpt2np.checkpoint.config import weight_shapes
from gpt2np.model import GPT2Config
from gpt2np.model.weights import Weights

CONFIGS = {
    "as GPT-2's": {"n_embd": 128, "n_head": 2, "n_inner": 512},
    "odd heads": {"n_embd": 24, "n_head": 3, "n_inner": 96},
    "wide MLP": {"n_embd": 16, "n_head": 1, "n_inner": 1100},
    "prime": {"n_embd": 521, "n_head": 1, "n_inner": 1103},
    "one head, one wide": {"n_embd": 1, "n_head": 1, "n_inner": 4},
}


def arrays_of(config, head):
    rng = np.random.default_rng(0)
    shapes = weight_shapes(config)
    if head:
        shapes["lm_head.weight"] = shapes["wte.weight"]
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture(params=CONFIGS)
def config(request):
    return GPT2Config(vocab_size=67, n_positions=9, n_layer=2, **CONFIGS[request.param])


@pytest.mark.parametrize("head", [False, True], ids=["tied", "own head"])
def test_weights_hold_the_given_arrays(config, head):
    given = arrays_of(config, head)
    weights = Weights(config, given)
    assert list(weights) == list(given) and len(weights) == len(given)
    for name, array in given.items():
        np.testing.assert_array_equal(weights[name], array, name)
        assert weights[name].dtype == np.float32
    rows, unembedding = np.array([66, 0, 5]), given["lm_head.weight" if head else "wte.weight"]
    np.testing.assert_array_equal(weights.layers.wte[rows], given["wte.weight"][rows])
    np.testing.assert_array_equal(weights.layers.lm_head[rows], unembedding[rows])
    assert weights.parameters == sum(array.size for array in given.values())
    assert ("lm_head.weight" in weights) == head


def test_a_model_with_another_array_computes_with_it(config):
    model, changes = GPT2(config, arrays_of(config, head=False)), arrays_of(config, head=False)
    ids = [1, 2, 3]
    before = model.forward([ids])
    for name, array in model.weights.items():
        changed = GPT2(config, {**model.weights, name: array + changes[name]})
        np.testing.assert_array_equal(changed.weights[name], array + changes[name])
        if config.n_embd > 1:
            assert np.abs(changed.forward([ids]) - before).max() > 1e-7, name
    np.testing.assert_array_equal(GPT2(config, model.weights).forward([ids]), before)


def test_weights_are_immutable(config):
    given = arrays_of(config, head=False)
    model = GPT2(config, given)
    before = model.forward([[5, 6]])
    for name, array in given.items():
        with pytest.raises(ValueError, match="read-only"):
            model.weights[name][:] = 0
        with pytest.raises(TypeError):
            model.weights[name] = array
        array[:] = 0  # the model has copies
    assert np.array_equal(model.forward([[5, 6]]), before)
    with pytest.raises(KeyError, match="no weight"):
        model.weights["h.7.ln_1.bias"]


@pytest.mark.parametrize("head", [False, True], ids=["tied", "own head"])
@pytest.mark.parametrize("n", [1, 20, 100])
def test_mapped_weights_have_equal_bits_in_each_pass(n, head, tmp_path):
    config = GPT2Config(vocab_size=5001, n_positions=128, n_layer=2, **CONFIGS["as GPT-2's"])
    given = arrays_of(config, head)
    GPT2(config, given).save(tmp_path / "model")
    model, ids = GPT2.from_folder(tmp_path / "model"), np.arange(n)
    expected = GPT2(config, given).forward([ids])
    np.testing.assert_array_equal(model.forward([ids]), expected)
    for name, array in given.items():
        np.testing.assert_array_equal(model.weights[name], array, name)
    np.testing.assert_array_equal(model.forward([ids]), expected)
    (tmp_path / "model/model.safetensors").write_bytes(b"")  # nothing reads the file any more
    np.testing.assert_array_equal(model.forward([ids]), expected)
    np.testing.assert_array_equal(model.weights["wte.weight"], given["wte.weight"])


@pytest.mark.parametrize("name", ["config", "weights", "dtype", "weight_dtype", "exact"])
def test_attributes_of_a_model_are_read_only(name):
    config = GPT2Config(vocab_size=67, n_positions=9, n_layer=2, **CONFIGS["odd heads"])
    model = GPT2(config, arrays_of(config, head=False))
    with pytest.raises(AttributeError, match=rf"{name} is read-only; .*GPT2\(config, weights"):
        setattr(model, name, getattr(model, name))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "int64", "complex64"])
def test_embeddings_of_another_dtype_are_an_error(dtype, exact):
    config = GPT2Config(vocab_size=67, n_positions=9, n_layer=2, **CONFIGS["odd heads"])
    given = {name: array.astype(dtype) for name, array in arrays_of(config, head=False).items()}
    expected = rf"wte\.weight has dtype {dtype}, expected float32 or float64; convert"
    with pytest.raises(InvalidArgumentError, match=expected):
        GPT2(config, given, exact=exact)


def test_other_arrays_are_converted_to_the_dtype_of_the_embedding():
    config = GPT2Config(vocab_size=67, n_positions=9, n_layer=2, **CONFIGS["odd heads"])
    given = arrays_of(config, head=False)
    other = {name: np.rint(9 * array).astype("int64") for name, array in given.items()}
    model = GPT2(config, {**other, "wte.weight": given["wte.weight"]})
    assert model.forward([[1, 2]]).dtype == model.weights["ln_f.bias"].dtype == np.float32
    with pytest.raises(InvalidArgumentError, match=r"ln_f\.bias has dtype <U1, expected float32"):
        GPT2(config, {**given, "ln_f.bias": np.full(24, "x")})


@pytest.mark.parametrize("change", [{"ln_f.bias": np.zeros((3, 3))}, {"ln_f.bias": None}])
def test_missing_arrays_and_wrong_shapes_are_errors(config, change):
    given = {name: a for name, a in (arrays_of(config, False) | change).items() if a is not None}
    expected = r"ln_f\.bias has shape \(3, 3\), expected|the weights lack ln_f\.bias"
    with pytest.raises(InvalidArgumentError, match=expected):
        GPT2(config, given)


def test_a_model_of_arrays_is_pickled_as_a_whole(bundled):
    loaded = GPT2.from_folder(bundled)
    changed = {"ln_f.bias": loaded.weights["ln_f.bias"] + np.float32(0.5)}
    model = GPT2(loaded.config, {**loaded.weights, **changed})
    assert len(pickle.dumps(loaded)) < 1000  # the folder's path
    expected = model.forward([[5, 6, 7]])
    for copied in (pickle.loads(pickle.dumps(model)), copy.copy(model)):
        np.testing.assert_array_equal(copied.forward([[5, 6, 7]]), expected)
    assert not np.array_equal(expected, loaded.forward([[5, 6, 7]]))
