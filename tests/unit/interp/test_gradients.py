"""Gradients of predictions: saliency, attribution patching, gradients through interventions."""

import numpy as np
import pytest
from helpers.random_models import random_model

from gpt2np import trace
from gpt2np.errors import ContextLengthError, InvalidArgumentError
from gpt2np.interp import (
    Target,
    activation_patching,
    add,
    attribution_patching,
    gradients,
    patch_from,
    saliency,
    zero,
    zero_head,
)


def log_softmax(row):
    row = row.astype(np.float64) - row.max()
    return row - np.log(np.exp(row).sum())


@pytest.mark.parametrize(
    "target", [Target(3), Target(3, kind="logit"), Target(3, 4), Target(5, position=1)]
)
def test_targets_against_differences(target):
    model = random_model(np.float64, n_embd=12, n_head=3, n_layer=2, vocab_size=20, n_positions=9)
    ids, step = [1, 5, 2, 7], np.random.default_rng(0).normal(size=(4, 12)) * 1e-6

    def value(sign):
        logits = trace(model, ids, "logits", interventions=add("embed", sign * step))["logits"]
        row = logits[target.position]
        row = log_softmax(row) if target.kind == "logprob" else row
        return row[target.token] - (0 if target.minus is None else row[target.minus])

    found = gradients(model, ids, target)
    assert (value(1) - value(-1)) / 2 == pytest.approx(np.sum(found["embed"] * step), rel=1e-5)
    assert {name: a.shape for name, a in found.items()} == {
        name: a.shape for name, a in trace(model, ids).items()
    }


def test_contributions_of_integrated_gradients_sum_to_the_change(lm):
    token = lm.tokenizer.encode(" he")[0]
    found = saliency(lm, "The king said that", Target(token), steps=15)
    assert found.values.sum() == pytest.approx(found.value - found.baseline, abs=0.05)
    exact = log_softmax(lm.model.forward([found.ids])[-1])[token]
    assert found.value == pytest.approx(exact, abs=1e-4)
    assert found.tokens == ("The", " king", " said", " that")
    assert found._repr_html_().count("<span") == 4
    simple = saliency(lm, "The king said that", Target(token), "gradient_x_input")
    assert simple.baseline is None and not np.allclose(simple.values, found.values)


def test_saliency_passes_through_interventions(lm):
    """Without the value of other tokens, only the last token matters."""
    hooks = [zero(f"blocks.{i}.attn.z") for i in range(6)]
    found = saliency(lm, "The king said that", Target(7), steps=2, interventions=hooks)
    assert not found.values[:-1].any() and found.values[-1] != 0


def test_attribution_patching_estimates_exact_patching(lm):
    he, she = (lm.tokenizer.encode(word)[0] for word in (" he", " she"))
    queen, target = trace(lm, "The queen said that"), Target(he, she)
    estimates = attribution_patching(lm, "The king said that", queen, target)
    assert estimates["blocks.2.attn.z"].shape == (4, 4)
    assert estimates["blocks.2.mlp.act"].shape == (4, 1024)
    assert estimates["blocks.2.resid"].shape == (4,)
    exact = activation_patching(lm, "The king said that", queen, target, "blocks.3.attn.z")
    estimate = estimates["blocks.3.attn.z"]
    assert np.corrcoef(exact.ravel(), estimate.ravel())[0, 1] > 0.8
    king = trace(lm, "The king said that", "logits")["logits"]
    hook = patch_from(queen, "blocks.3.attn.z", heads=2, positions=3)
    patched = trace(lm, "The king said that", "logits", interventions=hook)["logits"]
    change = (patched - king)[-1]
    assert exact[2, 3] == pytest.approx(change[he] - change[she], abs=1e-4)
    by_position = activation_patching(lm, "The king said that", queen, target, "blocks.5.resid")
    assert by_position.shape == (4,) and not by_position[:3].any()


def test_wrong_arguments(lm):
    with pytest.raises(InvalidArgumentError, match="it must be a token id below 4096"):
        gradients(lm, "The king", Target(5000))
    with pytest.raises(InvalidArgumentError, match=r"as in lm\.tokenizer\.encode\(' he'\)\[0\]"):
        gradients(lm, "The king", Target(" he"))
    with pytest.raises(InvalidArgumentError, match="position"):
        gradients(lm, "The king", Target(5, position=7))
    with pytest.raises(ContextLengthError, match="has 600 tokens"):
        gradients(lm, [5] * 600, Target(5))
    with pytest.raises(ContextLengthError, match="has 600 tokens"):
        saliency(lm, [5] * 600, Target(5))
    for token_id in (-1, 4096):
        with pytest.raises(InvalidArgumentError, match=f"id {token_id} is not in the model's"):
            saliency(lm, [5, token_id], Target(5))
    with pytest.raises(InvalidArgumentError, match="the source has 4 tokens and the prompt 2"):
        attribution_patching(lm, "The king", trace(lm, "The queen said that"), Target(5))
    king = trace(lm, "The king")
    with pytest.raises(InvalidArgumentError, match="it must be the name of one hook point"):
        activation_patching(lm, "The king", king, Target(5), r"blocks.*.attn.z")
    for wrong in (5, [5]):
        with pytest.raises(InvalidArgumentError, match="a function or a list of functions"):
            gradients(lm, "The king", Target(5), interventions=wrong)
    assert gradients(lm, "The king", Target(5), interventions=zero_head(1, 0))
