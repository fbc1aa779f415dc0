"""A text is the same whatever else is asked for, and whoever reads the text beside it."""

import asyncio

import numpy as np
import pytest

from gpt2np.interp import add


@pytest.mark.parametrize("n", [1, 2, 64, 65, 66, 129])
def test_log_probabilities_of_the_prompt_change_no_text(lm, n):
    ids = lm.tokenizer.encode("Once upon a time there was a little fox in the wood. " * 12)[:n]
    plain = lm.generate(ids, max_new_tokens=6, temperature=0)
    assert lm.generate(ids, max_new_tokens=6, temperature=0, prompt_logprobs=0).ids == plain.ids


def test_asyncio_edits_the_same_positions_of_a_long_prompt(lm):
    ids = np.random.default_rng(0).integers(10, 3000, 400).tolist()
    vector = np.random.default_rng(1).normal(0, 20, lm.model.config.n_embd)
    for position in (-1, 300):
        edit = add("blocks.0.resid", vector.astype(np.float32), positions=[position])
        options = {"max_new_tokens": 8, "temperature": 0, "interventions": edit}
        expected = lm.generate(ids, **options).ids
        assert asyncio.run(lm.agenerate(ids, **options)).ids == expected
