"""Steering: added vectors, directions."""

import numpy as np
import pytest

from gpt2np import trace
from gpt2np.errors import InvalidArgumentError
from gpt2np.interp import Direction, add, direction


@pytest.mark.parametrize(
    "point", ["embed", "blocks.*.resid", "blocks.2.attn.z", "blocks.3.mlp.act"]
)
def test_a_zero_vector_changes_no_bit(lm, point):
    before = trace(lm, "The king said that")
    after = trace(lm, "The king said that", interventions=add(point, np.zeros(1)))
    assert all(after[name].tobytes() == array.tobytes() for name, array in before.items())
    text = lm.generate("The king", max_new_tokens=8, temperature=0).text
    hook = add(point, 0.0)
    assert lm.generate("The king", max_new_tokens=8, temperature=0, interventions=hook).text == text


def test_a_direction_changes_the_text(lm):
    found = direction(lm, ["The queen said that she"], ["The king said that he"], "blocks.2.resid")
    queen, king = (
        trace(lm, f"The {who}", "blocks.2.resid")
        for who in ("queen said that she", "king said that he")
    )
    expected = queen["blocks.2.resid"][-1] - king["blocks.2.resid"][-1]
    np.testing.assert_allclose(found.vector, expected, atol=1e-6)
    plain, steered = (
        lm.generate("The king said", max_new_tokens=12, temperature=0, interventions=hook).text
        for hook in (add("embed", 0.0), found.add(4.0))
    )
    assert plain != steered


def test_direction_of_equal_means_is_an_error(lm):
    texts = ["A happy day"]
    with pytest.raises(InvalidArgumentError, match="of embed is the same for texts_a and texts_b"):
        direction(lm, texts, texts, "embed")


def test_wrong_arguments(lm):
    with pytest.raises(InvalidArgumentError, match="texts_a"):
        direction(lm, [], ["x"], "embed")
    with pytest.raises(InvalidArgumentError, match="point"):
        direction(lm, ["x"], ["y"], "blocks.*.resid")
    with pytest.raises(InvalidArgumentError, match="texts_b is 5; it must be a list"):
        direction(lm, ["x"], 5, "embed")
    with pytest.raises(InvalidArgumentError, match="strength is '1'; it must be a number"):
        Direction("embed", np.ones(256, np.float32)).add("1")
    with pytest.raises(InvalidArgumentError, match="vector"):
        add("embed", [np.nan])
    with pytest.raises(InvalidArgumentError, match=r"shape \(3,\) does not fit"):
        trace(lm, "The king", interventions=add("embed", [1, 2, 3]))
