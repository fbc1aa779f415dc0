"""The model of unit tests."""

import re
from dataclasses import replace

import pytest

from gpt2np import GPT2, LanguageModel


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    """The bundled model without its last four blocks: a third of the work."""
    lm = LanguageModel.load("bundled")
    weights = {name: w for name, w in lm.model.weights.items() if not re.match(r"h\.[2-5]", name)}
    lm.model = GPT2(replace(lm.model.config, n_layer=2), weights)
    return lm
