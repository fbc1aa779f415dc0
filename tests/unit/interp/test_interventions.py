"""Interventions: they edit the selected part and nothing else."""

import numpy as np
import pytest
from helpers.stored_references import TINY

from gpt2np import GPT2, InvalidArgumentError
from gpt2np.interp import chain, mean_ablate, patch_from, replace, scale, trace, zero, zero_head


@pytest.fixture(scope="module")
def prompts():
    return np.random.default_rng(5).integers(0, 211, (2, 20))


@pytest.fixture(scope="module")
def a(model, prompts):
    return trace(model, prompts[0])


@pytest.fixture(scope="module")
def b(model, prompts):
    return trace(model, prompts[1])


def changed(model, prompts, *interventions):
    return trace(model, prompts[0], interventions=interventions)


class TestPatching:
    """Patch from prompt B into prompt A, both of 20 tokens."""

    @pytest.mark.parametrize("points", [None, "embed", "blocks.1.resid", "logits"])
    def test_a_whole_layer_gives_the_other_prompts_logits_to_the_bit(
        self, model, prompts, a, b, points
    ):
        patched = changed(model, prompts, patch_from(b, points))
        np.testing.assert_array_equal(patched["logits"], b["logits"])
        assert np.abs(a["logits"] - b["logits"]).max() > 1

    def test_one_position_and_head(self, model, prompts, a, b):
        point = "blocks.1.attn.z"
        patched = changed(model, prompts, patch_from(b, point, heads=2, positions=[4, -1]))
        expected = a[point].copy()
        expected[2, [4, 19]] = b[point][2, [4, 19]]
        np.testing.assert_array_equal(patched[point], expected)
        # Earlier arrays of the pass and earlier tokens are unchanged.
        np.testing.assert_array_equal(patched["blocks.1.attn.v"], a["blocks.1.attn.v"])
        np.testing.assert_array_equal(patched["logits"][:4], a["logits"][:4])
        assert (patched["logits"][4:] != a["logits"][4:]).any(-1).all()

    def test_prompts_of_two_lengths(self, model, prompts):
        other = trace(model, prompts[1][:12])
        with pytest.raises(InvalidArgumentError, match=r"\(12, 24\).*\(20, 24\) at embed"):
            changed(model, prompts, patch_from(other, "embed"))
        with pytest.raises(InvalidArgumentError, match=r"^embed has no position 15"):
            changed(model, prompts, patch_from(other, "embed", positions=[15]))
        patched = changed(model, prompts, patch_from(other, "blocks.0.attn.k", positions=range(12)))
        np.testing.assert_array_equal(patched["blocks.0.attn.k"][:, :12], other["blocks.0.attn.k"])

    def test_what_the_trace_does_not_hold(self, model, prompts):
        some = trace(model, prompts[1], "embed")
        with pytest.raises(InvalidArgumentError, match="lacks ln_f; add it to the points"):
            patch_from(some, ["embed", "ln_f"])
        assert patch_from(some).points == ("embed",)


class TestAblation:
    def test_zero_head_takes_out_what_the_head_adds(self, prompts):
        model = GPT2.from_folder(TINY, "float64")
        before = trace(model, prompts[0])
        ablated = changed(model, prompts, zero_head(1, 2))
        rows = model.weights["h.1.attn.c_proj.weight"][2 * 8 : 3 * 8]
        head = before["blocks.1.attn.z"][2] @ rows
        np.testing.assert_allclose(
            ablated["blocks.1.attn.out"], before["blocks.1.attn.out"] - head, atol=1e-12
        )
        assert np.abs(head).max() > 0.01

    def test_mean_ablation_puts_the_mean_over_tokens_and_traces(self, model, prompts, a, b):
        points = ["blocks.1.mlp.act", "blocks.1.attn.out"]
        ablated = changed(model, prompts, mean_ablate(points, [a, b]))
        for name in ("blocks.1.mlp.act", "blocks.1.attn.out"):
            mean = (a[name].astype(float).sum(0) + b[name].sum(0)) / 40
            np.testing.assert_allclose(ablated[name], np.tile(mean, (20, 1)), atol=1e-6)

    def test_mean_ablation_of_heads(self, model, prompts, a, b):
        point = "blocks.2.attn.z"
        ablated = changed(model, prompts, mean_ablate(point, [b], heads=[1], positions=[3, 5]))
        mean = b[point][1].astype(float).mean(0)
        np.testing.assert_allclose(ablated[point][1, [3, 5]], [mean, mean], atol=1e-6)
        np.testing.assert_array_equal(ablated[point][[0, 2]], a[point][[0, 2]])
        with pytest.raises(InvalidArgumentError, match=r"pattern has no mean.*attn\.z"):
            mean_ablate("blocks.0.attn.*", [a])


class TestEdits:
    def test_hooks_act_in_turn(self, model, prompts):
        twice = chain(replace("embed", 3.0), scale("embed", 2.0))
        assert (changed(model, prompts, twice)["embed"] == 6).all()
        in_turn = changed(model, prompts, scale("embed", 2.0), replace("embed", 3.0))
        assert (in_turn["embed"] == 3).all()

    def test_scale(self, model, prompts, a):
        doubled = changed(model, prompts, scale("blocks.0.mlp.out", 2, positions=[1]))
        expected = a["blocks.0.mlp.out"].copy()
        expected[1] *= 2
        np.testing.assert_array_equal(doubled["blocks.0.mlp.out"], expected)
        same = changed(model, prompts, scale("*", 1.0))
        np.testing.assert_array_equal(same["logits"], a["logits"])

    def test_replace_broadcasts_and_keeps_the_dtype(self, model, prompts):
        vector = np.arange(24.0)
        array = changed(model, prompts, replace("embed", vector, positions=[0, 2]))["embed"]
        np.testing.assert_array_equal(array[[0, 2]], [vector, vector])
        assert array.dtype == np.float32

    @pytest.mark.parametrize(
        ("pattern", "points"),
        [("b*1.attn.z", {"blocks.1.attn.z"}), ("blocks.[1]*resid", {"blocks.1.resid"})],
    )
    def test_patterns_mean_what_they_mean_to_trace(self, model, prompts, a, pattern, points):
        assert set(trace(model, prompts[0], pattern)) == points
        one = changed(model, prompts, zero(pattern))
        same = changed(model, prompts, zero(list(points)))
        np.testing.assert_array_equal(one["logits"], same["logits"])
        assert (one["logits"] != a["logits"]).any()

    def test_channels_are_the_last_axis(self):
        array = np.ones((2, 3, 4), np.float32)
        edited = scale("blocks.0.attn.z", 3, heads=1, positions=0, channels=[1, -1])(
            "blocks.0.attn.z", array
        )
        assert (edited == np.float32([3 if c in (1, 3) else 1 for c in range(4)]))[1, 0].all()
        assert edited.sum() == array.sum() + 4
        silent = zero("blocks.0.mlp.act", channels=2)("blocks.0.mlp.act", np.ones((3, 5)))
        assert not silent[:, 2].any() and silent.sum() == 12

    def test_the_array_that_comes_in_is_not_written_to(self):
        array = np.ones((4, 24), np.float32)
        array.flags.writeable = False
        assert not zero("embed")("embed", array).any()
        assert zero("embed")("ln_f", array) is array


class TestBadInput:
    def test_when_it_is_made(self):
        with pytest.raises(InvalidArgumentError, match="needs at least one trace"):
            mean_ablate("embed", [])
        with pytest.raises(InvalidArgumentError, match=r"points is \['embed', 3\]"):
            zero(["embed", 3])

    @pytest.mark.parametrize(
        ("intervention", "message"),
        [
            (zero("blocks.0.attn.pattrn"), "did you mean 'blocks.0.attn.pattern'"),
            (zero_head(-1, 0), "unknown hook point 'blocks.-1.attn.z'"),
            (zero("embed", heads=0), "embed has no heads; choose positions or channels"),
            (zero("embed", channels=24), "embed has no channel 24; choose from 0 to 23"),
            (chain(zero("embed"), chain(zero_head(99, 0))), "did you mean 'blocks.2.attn.z'"),
            (zero_head(1, 3), "blocks.1.attn.z has no head 3; choose from 0 to 2"),
            (zero("embed", positions=20), "embed has no position 20; choose from 0 to 19"),
            (zero("embed", positions=1.5), "1.5 is not a position of embed"),
            (replace("embed", np.zeros(7)), "shape (7,) does not fit (20, 24) at embed"),
        ],
    )
    def test_when_it_meets_the_model(self, model, prompts, intervention, message):
        with pytest.raises(InvalidArgumentError) as caught:
            changed(model, prompts, intervention)
        assert message in str(caught.value) and "\n" not in str(caught.value)
        assert "the hook must return" not in str(caught.value)
        with pytest.raises(InvalidArgumentError) as caught:
            model.forward([prompts[0]], hook=intervention)
        assert message in str(caught.value)


@pytest.mark.parametrize("exact", [False, True])
def test_positions_in_a_pass_over_several_texts_are_an_error(model, prompts, exact):
    model = GPT2(model.config, model.weights, exact=exact)
    hook = chain(zero("blocks.1.resid", positions=0))
    with pytest.raises(InvalidArgumentError, match="hook selects positions of one text"):
        model.forward(prompts, hook=hook)
    model.forward(prompts[:1], hook=hook)
    model.forward(prompts, hook=zero("blocks.1.resid"))
