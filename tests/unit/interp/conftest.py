"""The model of tests that look into the bundled model."""

import pytest

from gpt2np import LanguageModel


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    """The bundled model, all of it."""
    return LanguageModel.load("bundled")
