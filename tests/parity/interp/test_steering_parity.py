"""An added vector against a forward hook in transformers."""

import numpy as np
import torch
from helpers.transformers_pass import transformers_model

import gpt2np
from gpt2np import trace
from gpt2np.interp import add


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
