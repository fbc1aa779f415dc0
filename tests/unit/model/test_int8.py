"""Models whose matrices have 8-bit weights."""

import copy
import pickle
import tracemalloc

import numpy as np
import pytest
from helpers.random_models import random_model

import gpt2np
from gpt2np import GPT2, InvalidArgumentError
from gpt2np.checkpoint.convert import convert
from gpt2np.checkpoint.load import read_checkpoint

IDS = np.random.default_rng(5).integers(0, 97, 40)
SHAPE = {"vocab_size": 97, "n_positions": 48, "n_embd": 24, "n_layer": 3, "n_head": 3}
SHAPE |= {"n_inner": 1100}
C_FC = "h.1.mlp.c_fc.weight"


@pytest.fixture(params=[True, False], ids=["tied", "own head"])
def float_model(request):
    return random_model(**SHAPE, tied=request.param)


@pytest.fixture
def model(float_model):
    return GPT2(float_model.config, float_model.weights, weight_dtype="int8")


def test_the_logits_are_those_of_the_rounded_weights(model, float_model):
    rounded = GPT2(model.config, dict(model.weights))
    assert rounded.weight_dtype is None
    np.testing.assert_allclose(model.forward([IDS]), rounded.forward([IDS]), atol=2e-6)
    assert 0 < np.abs(model.forward([IDS]) - float_model.forward([IDS])).max() < 0.05


def test_only_matrices_are_rounded(model, float_model):
    n_bytes = 0
    for name, array in float_model.weights.items():
        is_matrix = array.ndim == 2 and name != "wpe.weight"
        rounded = model.weights[name]
        assert np.array_equal(rounded, array) != is_matrix, name
        n_bytes += array.size * (1 if is_matrix else 4)
        if is_matrix:  # a scale for each output and each group of at most 192 inputs
            outputs = rounded if name in ("wte.weight", "lm_head.weight") else rounded.T
            if "mlp.c_proj" in name:
                outputs = outputs.reshape(-1, 110)
            n_bytes += 4 * len(outputs)
            for weights in outputs:
                integers = weights / (np.abs(weights).max() / 127)
                np.testing.assert_allclose(integers, np.rint(integers), atol=1e-4)
    assert n_bytes <= model.weights.nbytes < 0.5 * float_model.weights.nbytes


def test_summary_names_int8(model, float_model):
    assert model.weight_dtype == "int8" and model.dtype == np.float32
    assert model.summary == float_model.summary + ", int8 weights"
    assert model.weights.parameters == float_model.weights.parameters


def test_a_quantized_model_quantizes_to_itself(model):
    again = GPT2(model.config, model.weights, weight_dtype="int8")
    np.testing.assert_array_equal(again.weights[C_FC], model.weights[C_FC])
    np.testing.assert_array_equal(again.forward([IDS]), model.forward([IDS]))


@pytest.mark.parametrize("wrong", [np.nan, -np.inf])
def test_nan_and_infinity_can_not_be_quantized(model, float_model, wrong):
    changed = model.weights[C_FC].copy()
    changed[-1, -1] = wrong
    message = r"h\.1\.mlp\.c_fc\.weight has NaN or infinity, which int8 can't hold"
    with pytest.raises(InvalidArgumentError, match=message):
        GPT2(model.config, {**float_model.weights, C_FC: changed}, weight_dtype="int8")


@pytest.mark.parametrize("is_changed", [False, True])
def test_copies_and_saved_models_have_the_same_bits(model, tmp_path, is_changed):
    if is_changed:
        weights = {**model.weights, C_FC: 2 * model.weights[C_FC]}
        model = GPT2(model.config, weights, weight_dtype="int8")
    model.save(tmp_path / "a")
    loaded = GPT2.from_folder(tmp_path / "a", weights="int8")
    expected = model.forward([IDS])
    for same in (loaded, copy.deepcopy(model), pickle.loads(pickle.dumps(loaded))):
        assert same.weight_dtype == "int8"
        np.testing.assert_array_equal(same.forward([IDS]), expected)
    as_floats = GPT2.from_folder(tmp_path / "a")
    for name, array in model.weights.items():
        np.testing.assert_array_equal(as_floats.weights[name], array, name)


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16"])
def test_files_of_another_dtype_are_quantized_after_conversion(float_model, tmp_path, dtype):
    """Each matrix is converted when it is quantized; the result is that of the converted file."""
    float_model.save(tmp_path / "a")
    convert(read_checkpoint(tmp_path / "a"), tmp_path / "b", dtype=dtype)
    converted = GPT2.from_folder(tmp_path / "b")
    expected = GPT2(converted.config, converted.weights, weight_dtype="int8").forward([IDS])
    loaded = GPT2.from_folder(tmp_path / "b", weights="int8")
    np.testing.assert_array_equal(loaded.forward([IDS]), expected)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_memory_never_holds_all_matrices_as_floats(tmp_path, dtype, monkeypatch):
    monkeypatch.setattr("gpt2np.model.model.raise_mmap_threshold", lambda: None)  # takes 32 MB
    random_model(**SHAPE | {"n_layer": 30, "n_embd": 48}).save(tmp_path / "a")
    convert(read_checkpoint(tmp_path / "a"), tmp_path / "b", dtype=dtype)
    tracemalloc.start()
    model = GPT2.from_folder(tmp_path / "b", weights="int8")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert model.weights.nbytes < peak < 0.45 * 4 * model.weights.parameters


def test_wrong_names_of_weights(float_model, bundled):
    message = "weights is 'int4'; it must be 'int8'"
    with pytest.raises(InvalidArgumentError, match=message):
        gpt2np.load("bundled", weights="int4")
    with pytest.raises(InvalidArgumentError, match=message):
        GPT2.from_folder(bundled, weights="int4")
    with pytest.raises(InvalidArgumentError, match="weight_dtype is 8; it must be None or 'int8'"):
        GPT2(float_model.config, float_model.weights, weight_dtype=8)
