"""The description of a pass: its arrays and numbers are those of the library."""

import base64
import json

import numpy as np
import pytest
from helpers.explain_pages import decoded, described_logits

from gpt2np import GenerationOptions, InvalidArgumentError, trace
from gpt2np.generation.sampling import next_probabilities
from gpt2np.interp import scale
from gpt2np.interp.description import (
    DESCRIBED_POINTS,
    MAX_LINES,
    array_json,
    describe_pass,
    record_pass,
)

PROMPT = "Once upon a time there was a little fox"


@pytest.mark.parametrize("repeats", [1, 4], ids=["all tokens", "the last tokens"])
def test_lines_are_the_arrays_of_a_trace(lm, repeats):
    traced = trace(lm, " ".join([PROMPT] * repeats))
    lines = describe_pass(lm, traced)["lines"]
    n = len(traced.ids)
    first = max(0, n - MAX_LINES)
    assert lines["first"] == first
    layers = range(lm.model.config.n_layer)
    wte = lm.model.weights["wte.weight"][traced.ids[first:]]
    assert {lines[name]["dtype"] for name in ("wte", "wpe", "attention", "resid")} == {"float16"}
    np.testing.assert_allclose(decoded(lines["wte"]), wte, rtol=1e-3, atol=1e-3)
    for name, point in {"attention": "attn.out", "mlp": "mlp.out", "resid": "resid"}.items():
        expected = np.stack([traced[f"blocks.{i}.{point}"][first:] for i in layers])
        np.testing.assert_array_equal(decoded(lines[name]), expected.astype(np.float16))
    pattern = np.stack([traced[f"blocks.{i}.attn.pattern"][:, first:, first:] for i in layers])
    np.testing.assert_array_equal(decoded(lines["pattern"]), pattern)
    neurons, activations = decoded(lines["neurons"]), decoded(lines["activations"])
    for i in layers:
        active = np.take_along_axis(traced[f"blocks.{i}.mlp.act"][first:], neurons[i], -1)
        np.testing.assert_array_equal(activations[i], active)


def test_a_recorded_pass_has_the_same_description(lm):
    """`record_pass` keeps few rows of the large arrays."""
    ids = lm.encode_prompt(f"{PROMPT} {PROMPT}")
    recorded = record_pass(lm, ids)
    assert recorded["blocks.0.attn.pattern"].shape == (4, MAX_LINES, len(ids))
    assert describe_pass(lm, recorded) == describe_pass(lm, trace(lm, ids, DESCRIBED_POINTS))
    off = scale("blocks.2.mlp.out", 0)
    edited = describe_pass(lm, record_pass(lm, ids, [off]))
    assert edited == describe_pass(lm, trace(lm, ids, DESCRIBED_POINTS, interventions=off))
    assert edited != describe_pass(lm, recorded)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "top_k": 40}, {"temperature": 0}])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_draw_is_that_of_generate(lm, options, seed):
    options = {"temperature": 1.0, "top_k": 0, **options}
    sampling = GenerationOptions(**options)
    written = lm.generate(PROMPT, max_new_tokens=3, seed=seed, **options).ids
    for i, expected in enumerate(written):
        ids = [*lm.encode_prompt(PROMPT), *written[:i]]
        described = describe_pass(lm, record_pass(lm, ids), sampling=sampling, seed=seed, n_drawn=i)
        draw = described["draw"]
        assert draw["id"] == expected
        [row] = [row for row in described["next"] if row["id"] == expected]
        assert row["from"] <= draw["number"] < row["from"] + row["sampled"] + 1e-12
        chance = next_probabilities(described_logits(lm, ids), sampling)[expected]
        assert row["sampled"] == pytest.approx(chance, rel=1e-6)


def test_it_is_json_with_the_text_of_every_token(lm):
    described = json.loads(json.dumps(describe_pass(lm, record_pass(lm, [5, 6, 7]), seed=1)))
    assert (described["format"], described["version"]) == ("gpt2np.pass", 1)
    named = {*described["ids"], *(row["id"] for row in described["next"])}
    named |= {i for point in described["lens"] for i in point["ids"]}
    for i in named:
        text = base64.b64decode(described["texts"][str(i)])
        assert text == lm.tokenizer.vocabulary.token_bytes[i]
    short = describe_pass(lm, record_pass(lm, [5]), include=[])
    assert not {"lens", "lines", "attention", "neurons"} & short.keys()


def test_numbers_beyond_float16_are_float32():
    assert array_json(np.array([1e5], np.float32), np.float16)["dtype"] == "float32"
    assert array_json(np.array([-6e4], np.float32), np.float16)["dtype"] == "float16"
    assert array_json(np.zeros((2, 0), np.float32), np.float16)["shape"] == [2, 0]


def test_wrong_arguments(lm):
    recorded = record_pass(lm, [5])
    with pytest.raises(InvalidArgumentError, match="below 4096"):
        describe_pass(lm, recorded, tokens=[4096])
    with pytest.raises(InvalidArgumentError, match="the trace lacks"):
        describe_pass(lm, trace(lm, [5], "logits"))
