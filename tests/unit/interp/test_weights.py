"""Nearest tokens."""

import numpy as np

from gpt2np.interp.weights import nearest_tokens


def test_nearest_tokens(lm):
    wte = lm.model.weights["wte.weight"]
    ids, cosines = nearest_tokens(wte, [500, 7], 4)
    unit = wte / np.linalg.norm(wte, axis=1, keepdims=True)
    for row, token_id in enumerate([500, 7]):
        others = unit @ unit[token_id]
        others[token_id] = -2
        assert ids[row].tolist() == np.argsort(-others)[:4].tolist()
        np.testing.assert_allclose(cosines[row], np.sort(others)[::-1][:4], atol=1e-6)
