"""The table of hook points against the calls of a real pass."""

import re

import pytest
from helpers.paths import CHECKOUT

from gpt2np import InvalidArgumentError
from gpt2np.interp import HOOK_POINTS, hook_point_names, hook_point_shape
from gpt2np.model.hook_points import select_hook_points


@pytest.mark.parametrize("tokens", [1, 7])
def test_names_shapes_and_order_are_those_of_a_pass(model, tokens):
    seen = []

    def record(name, array):
        seen.append((name, array.shape))
        return array

    model.forward([list(range(tokens))], hook=record)
    names = hook_point_names(model.config.n_layer)
    assert seen == [(name, hook_point_shape(name, model.config, tokens)) for name in names]


def test_the_reference_lists_every_point_with_its_shape():
    page = (CHECKOUT / "docs" / "reference" / "hook_points.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\S+)` \| ([^|]+) \|", page, re.MULTILINE)
    assert rows == [(p.name.format(i="i"), p.shape.replace(" ", " × ")) for p in HOOK_POINTS]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("blocks.1.attn.q", ["blocks.1.attn.q"]),
        ("blocks.*.attn.pattern", [f"blocks.{i}.attn.pattern" for i in range(3)]),
        ("blocks.[12].attn.z", ["blocks.1.attn.z", "blocks.2.attn.z"]),
        (["logits", "embed", "embed"], ["embed", "logits"]),
        ([], []),
        ("*", hook_point_names(3)),
    ],
)
def test_patterns_choose(pattern, expected):
    assert select_hook_points(pattern, 3) == expected


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("blocks.0.attn.patern", "did you mean 'blocks.0.attn.pattern'?"),
        ("blocks.*.resid_mit", r"did you mean 'blocks.*.resid_mid'?"),
        ("blocks.1.attn.hook_z", "did you mean 'blocks.1.attn.z'?"),
        ("logit", "did you mean 'logits'?"),
        ("blocks.3.resid", "did you mean 'blocks.2.resid'?"),
        ("transformer.h.0", 'page "Hook points" lists them'),
        ("", 'page "Hook points" lists them'),
    ],
)
def test_a_name_that_no_point_has_is_told_with_the_closest(pattern, message):
    with pytest.raises(InvalidArgumentError) as caught:
        select_hook_points(["embed", pattern], 3)
    assert repr(pattern) in str(caught.value) and message in str(caught.value)
