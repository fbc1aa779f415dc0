"""Parts of weights, and nearest tokens."""

import numpy as np
import pytest

from gpt2np.errors import InvalidArgumentError
from gpt2np.interp.weights import nearest_tokens, strongest, submatrix


def test_a_small_part_is_the_weight_itself(lm):
    name = "h.2.attn.c_attn.weight"
    part = submatrix(lm.model.weights, name, (3, 10), (700, 768))
    np.testing.assert_array_equal(part, lm.model.weights[name][3:10, 700:768])
    bias = submatrix(lm.model.weights, "h.0.mlp.c_fc.bias", columns=(5, 9))
    np.testing.assert_array_equal(bias, lm.model.weights["h.0.mlp.c_fc.bias"][None, 5:9])


def test_a_large_part_has_the_strongest_number_of_each_bin():
    matrix = np.random.default_rng(0).normal(size=(100, 37)).astype(np.float32)
    pooled = strongest(matrix, 30)
    assert pooled.shape == (30, 30)
    for i in range(30):
        for j in range(30):
            rows = slice(i * 100 // 30, (i + 1) * 100 // 30)
            bin_ = matrix[rows, j * 37 // 30 : (j + 1) * 37 // 30]
            assert pooled[i, j] == bin_.flat[np.abs(bin_).argmax()]


@pytest.mark.parametrize(
    "arguments",
    [{"name": "wte"}, {"rows": (3, 3)}, {"columns": (0, 10_000)}, {"rows": (-1, 4)}, {"cells": 0}],
)
def test_wrong_arguments(lm, arguments):
    with pytest.raises(InvalidArgumentError, match=next(iter(arguments))):
        submatrix(lm.model.weights, **{"name": "wte.weight", **arguments})


def test_nearest_tokens(lm):
    wte = lm.model.weights["wte.weight"]
    ids, cosines = nearest_tokens(wte, [500, 7], 4)
    unit = wte / np.linalg.norm(wte, axis=1, keepdims=True)
    for row, token_id in enumerate([500, 7]):
        others = unit @ unit[token_id]
        others[token_id] = -2
        assert ids[row].tolist() == np.argsort(-others)[:4].tolist()
        np.testing.assert_allclose(cosines[row], np.sort(others)[::-1][:4], atol=1e-6)
