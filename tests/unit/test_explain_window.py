"""A window of a long prompt costs what the window costs."""

import pytest

from gpt2np import LanguageModel
from gpt2np.explain import explain
from gpt2np.explain.pieces import pieces_in_window, text_in_window
from gpt2np.explain.run import run_prompt


@pytest.fixture(scope="module")
def lm(bundled):
    return LanguageModel.load(bundled)


@pytest.mark.parametrize("prompt", ["a" * 20_000, " " * 20_000])
def test_a_piece_longer_than_the_window(lm, prompt):
    page = explain(lm, prompt, window=slice(10, 14), steps=1, float64=False)
    [piece] = page.description["details"]["pieces"]
    assert piece["is_cut"] and not piece["steps"]
    assert len(page.html) < 3_000_000
    assert len(text_in_window(page.run)) < 200


def test_only_pieces_in_the_window_are_merged(lm, monkeypatch):
    run = run_prompt(lm, "Once upon a time. " * 2000, window=slice(8, 12))
    merged = []
    monkeypatch.setattr(lm.tokenizer, "merge_steps", lambda piece: merged.append(piece) or ())
    pieces = pieces_in_window(run)
    assert len(pieces) == len(merged) <= 4
    assert [i for placed in pieces for i in placed.piece.ids] == run.ids
