"""Traces: their content, and that they have no effect on the pass."""

import numpy as np
import pytest
from helpers.stored_references import TINY

import gpt2np
from gpt2np import GPT2, InvalidArgumentError
from gpt2np.interp import (
    attribution,
    hook_point_names,
    induction_scores,
    lens_table,
    logit_lens,
    trace,
)
from gpt2np.kernels.blas import small_kernels


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(3).integers(0, 211, 40)


def assert_same(a, b):
    """Compare bit for bit where the forward pass guarantees it."""
    if small_kernels():
        np.testing.assert_array_equal(a, b)
    else:
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)


class TestLooking:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("tokens", [1, 2, 40])
    def test_a_hook_that_returns_its_input_changes_nothing(self, ids, dtype, tokens):
        model = GPT2.from_folder(TINY, dtype)
        plain = model.forward([ids[:tokens]])
        assert_same(model.forward([ids[:tokens]], hook=lambda name, array: array), plain)
        assert_same(trace(model, ids[:tokens])["logits"], plain)

    def test_writing_into_a_trace_changes_no_other(self, model, ids):
        first = trace(model, ids)
        for array in first.values():
            array[...] = 7
        embedding = model.weights["wte.weight"][ids] + model.weights["wpe.weight"][: len(ids)]
        np.testing.assert_array_equal(trace(model, ids)["embed"], embedding)


class TestContent:
    def test_all_points_by_default_in_the_pass_s_order(self, model, ids):
        kept = gpt2np.trace(model, ids)
        assert list(kept) == hook_point_names(3)
        assert kept.ids.tolist() == ids.tolist() and kept.config is model.config
        assert {array.dtype for array in kept.values()} == {np.dtype(np.float32)}

    @pytest.mark.parametrize(
        "points", ["embed", "blocks.1.attn.k", "blocks.2.resid", ["blocks.*.mlp.act", "ln_f"]]
    )
    def test_chosen_points_are_as_in_a_whole_trace(self, model, ids, points):
        whole, some = trace(model, ids), trace(model, ids, points)
        assert 0 < len(some) < len(whole)
        for name, array in some.items():
            np.testing.assert_array_equal(array, whole[name])

    def test_the_pass_ends_when_all_has_been_seen(self, model, ids):
        seen = []

        def look(name, array):
            seen.append(name)
            return array

        trace(model, ids, "blocks.1.attn.q", interventions=look)
        assert seen[-1] == "blocks.1.attn.q" and len(seen) == len(set(seen)) < 20

    def test_a_text_is_encoded_as_the_engine_does(self, lm):
        text = "The fox <|endoftext|>"
        prompt = lm.generate(text, max_new_tokens=1).prompt_ids
        assert trace(lm, text, "embed").ids.tolist() == prompt
        assert trace(lm, "", "embed").ids.tolist() == [lm.bos_token_id]
        with pytest.raises(InvalidArgumentError, match="no tokenizer"):
            trace(lm.model, text)

    def test_what_is_not_here(self, model, ids):
        kept = trace(model, ids, "embed")
        assert "logits" not in kept and kept.get("logits") is None
        with pytest.raises(KeyError, match="logits is not in this trace; list"):
            kept["logits"]
        with pytest.raises(InvalidArgumentError, match="lacks blocks"):
            kept.require("blocks.0.ln_1")
        assert repr(kept) == "<Trace of 40 tokens: 1 array>"


@pytest.mark.parametrize(
    "function",
    [
        lambda model, traced: attribution(model, traced, 5).values,
        lambda model, traced: logit_lens(model, traced["embed"]),
        lambda model, traced: lens_table(model, traced, 3).ids,
        lambda model, _: induction_scores(model, [5, 6, 7]),
    ],
)
def test_every_function_takes_the_language_model(lm, function):
    traced = trace(lm, "The fox ran")
    np.testing.assert_array_equal(function(lm, traced), function(lm.model, traced))
