"""POST /api/inspect with a vector that is added to activations."""

import numpy as np
import pytest

import gpt2np
from gpt2np import trace
from gpt2np.errors import InvalidArgumentError
from gpt2np.interp import add
from gpt2np.server.inspect import inspect
from gpt2np.server.protocol import InspectRequest


def test_a_vector_is_added_at_its_positions():
    lm = gpt2np.load("bundled")
    vector = np.random.default_rng(0).normal(size=256).round(3).tolist()

    def request(**intervention):
        body = {"prompt": "The little girl", "include": [], "n": 3}
        edit = {"point": "blocks.2.resid", "vector": vector, **intervention}
        return inspect(lm, InspectRequest(**body, interventions=[edit]))

    for positions in ([1], None):
        hook = add("blocks.2.resid", vector, positions=positions)
        logits = trace(lm, "The little girl", "logits", interventions=hook)["logits"][-1]
        found = request(positions=positions)
        assert [item["id"] for item in found["next"]] == np.argsort(-logits)[:3].tolist()
    with pytest.raises(InvalidArgumentError, match="does not fit"):
        request(vector=[1.0, 2.0])
