"""Packed weights: reading, assigning, packing, and what survives an error."""

import numpy as np
import pytest

from gpt2np import GPT2, InvalidArgumentError
from gpt2np.checkpoint.names import weight_shapes
from gpt2np.kernels.packed_matrix import PackedMatrix, packed_size
from gpt2np.model import GPT2Config
from gpt2np.model.weights import pack_weights

CONFIGS = {
    "as GPT-2's": {"n_embd": 128, "n_head": 2, "n_inner": 512},
    "odd heads": {"n_embd": 24, "n_head": 3, "n_inner": 96},
    "odd MLP": {"n_embd": 48, "n_head": 3, "n_inner": 100},
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
def test_what_was_put_in_comes_out(config, head):
    given = arrays_of(config, head)
    taken = dict(given)
    weights = pack_weights(config, taken)
    assert list(weights) == list(given) and len(weights) == len(given)
    for _ in range(2):  # mapped, then packed
        for name, array in given.items():
            np.testing.assert_array_equal(weights[name], array, name)
            assert weights[name].dtype == np.float32
        for name in ("wte.weight", "lm_head.weight")[: 1 + head]:
            rows = np.array([66, 0, 5])
            np.testing.assert_array_equal(weights.gather_rows(name, rows), given[name][rows])
        weights.for_pass(short=False)
    assert weights.parameters == sum(array.size for array in given.values())


def test_what_is_set_is_used(config):
    model = GPT2(config, arrays_of(config, head=False))
    ids = [1, 2, 3]
    before, changes = model.forward([ids]), arrays_of(config, head=False)
    for name in list(model.weights):
        kept = model.weights[name].copy()
        model.weights[name] = kept + changes[name]
        np.testing.assert_array_equal(model.weights[name], kept + changes[name])
        if config.n_embd > 1:
            assert np.abs(model.forward([ids]) - before).max() > 1e-7, name
        model.weights[name] = kept
        np.testing.assert_allclose(model.forward([ids]), before, atol=1e-4)


@pytest.mark.parametrize(
    ("small", "was_used"), [(True, True), (True, False), (False, False)]
)  # without small-matrix kernels, the first pass packs
def test_an_error_while_weights_are_packed_loses_none(config, monkeypatch, small, was_used):
    arrays = arrays_of(config, head=False)
    before = GPT2(config, arrays).forward([[1, 2, 3]])
    model = GPT2(config, arrays)
    monkeypatch.setattr("gpt2np.runtime.packed_weights.small_kernels", lambda: small)
    if was_used:
        model.forward([[1, 2, 3]])
    fill, calls = PackedMatrix.fill, []

    def interrupted(panels, matrix):
        calls.append(panels)
        if len(calls) == 5:
            raise KeyboardInterrupt
        fill(panels, matrix)

    monkeypatch.setattr(PackedMatrix, "fill", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.weights.for_pass(short=not small)
    np.testing.assert_allclose(model.forward([[1, 2, 3]]), before, atol=1e-4)


def test_equal_passes_have_equal_bits(config):
    model = GPT2(config, arrays_of(config, head=False))
    for n in (1, 2, 3, 9):  # the first short pass may read weights that are not packed
        one, other = GPT2(config, dict(model.weights)), np.arange(n) % config.vocab_size
        np.testing.assert_array_equal(one.forward([other]), one.forward([other]))


def test_what_is_got_can_not_be_changed_in_place(config):
    model = GPT2(config, arrays_of(config, head=False))
    with pytest.raises(ValueError, match="read-only"):
        model.weights["ln_f.bias"] += 1
    assert "ln_f.bias" in model.weights and "lm_head.weight" not in model.weights


def test_what_can_not_be_set(config):
    weights = pack_weights(config, arrays_of(config, head=False))
    with pytest.raises(InvalidArgumentError, match=r"ln_f\.bias has shape \(3, 3\), expected"):
        weights["ln_f.bias"] = np.zeros((3, 3))
    with pytest.raises(KeyError):
        weights["h.7.ln_1.bias"] = np.zeros(3)
    with pytest.raises(TypeError, match="all of its weights"):
        del weights["ln_f.bias"]


@pytest.mark.parametrize("panel_shape", [(20, 16), (7, 16), (20, 5), (6, 64)])
def test_zeros_pad_the_panels(panel_shape):
    matrix = np.random.default_rng(0).normal(size=(20, 33))
    buffer = np.full(packed_size(matrix.shape, panel_shape), np.nan)
    packed = PackedMatrix.in_buffer(buffer, matrix.shape, panel_shape)
    packed.fill(matrix)
    assert np.count_nonzero(buffer) == matrix.size and not np.isnan(buffer).any()
    np.testing.assert_array_equal(packed.unpack(), matrix)
    columns = np.array([32, 0, 5])
    np.testing.assert_array_equal(packed.gather_columns(columns), matrix.T[columns])


@pytest.mark.parametrize("head", [False, True], ids=["tied", "own head"])
@pytest.mark.parametrize("n_passes", [0, 1, 2])
def test_what_is_read_is_read_only(config, head, n_passes):
    """A write to a copy of a packed weight would otherwise do nothing, without a word."""
    given = arrays_of(config, head)
    model = GPT2(config, given)
    for _ in range(n_passes):
        model.forward([[5, 6]])
    before = model.forward([[5, 6]]) if n_passes else None
    for name in model.weights:
        with pytest.raises(ValueError, match="read-only"):
            model.weights[name][:] = 0
    if n_passes:
        assert np.array_equal(model.forward([[5, 6]]), before)
    model.weights["h.0.mlp.c_fc.weight"] = np.zeros_like(given["h.0.mlp.c_fc.weight"])
    assert not model.weights["h.0.mlp.c_fc.weight"].any()
