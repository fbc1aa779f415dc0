"""Logits against transformers (float32, eager attention) and against a float64 reference.

tests/parity/checkpoint/test_checkpoint_parity.py has the options of configs, dtypes and layouts.
"""

import numpy as np
import pytest
from helpers.logits import check_logits
from helpers.references import load_reference, save_reference

from gpt2np import GPT2, Tokenizer

SHAPES = {
    "12 layers": {"n_layer": 12, "n_embd": 48, "n_head": 2, "vocab_size": 500, "n_positions": 200},
    "1 head, 1 wide": {"n_layer": 2, "n_embd": 1, "n_head": 1, "vocab_size": 7, "n_positions": 9},
    "124M's width": {"n_layer": 1, "vocab_size": 1003},
    "124M": {"n_layer": 12},
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "124M" else n for n in SHAPES]
)
def test_random_models(name, tmp_path):
    reference = save_reference(tmp_path, **SHAPES[name])
    model = GPT2.from_folder(tmp_path)
    rng = np.random.default_rng(1)
    config = model.config
    lengths = [1, 2, min(150, config.n_positions)]
    sequences = [rng.integers(0, config.vocab_size, length) for length in lengths]
    check_logits(name, model, reference, sequences)


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_bundled_model_on_held_out_text(bundled, data, count):
    reference = load_reference(bundled)
    text = (data / "stories" / "valid.txt").read_text(encoding="utf-8")
    ids = Tokenizer.load(bundled).encode(text[50_000:70_000], allowed_special="all")[:count]
    assert len(ids) == count
    model = GPT2.from_folder(bundled)
    sequences = [ids[i : i + 500] for i in range(0, count, 500)]
    check_logits("bundled", model, reference, sequences)
