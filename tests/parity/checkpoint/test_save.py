"""`GPT2.save`: what gpt2np and transformers load from it."""

import numpy as np
import pytest
from helpers.references import load_reference, reference_logits, save_reference

import gpt2np
from gpt2np import GPT2, InvalidArgumentError

SHAPE = {"vocab_size": 211, "n_positions": 48, "n_embd": 24, "n_layer": 3, "n_head": 3}
IDS = np.random.default_rng(5).integers(0, 211, 40)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("tied", [True, False])
def test_transformers_loads_an_edited_model(tmp_path, dtype, tied):
    end = [3, 7] if tied else 3
    save_reference(tmp_path / "a", **SHAPE, tie_word_embeddings=tied, eos_token_id=end)
    model = GPT2.from_folder(tmp_path / "a", dtype)
    name = "h.1.attn.c_attn.weight"
    model = GPT2(model.config, {**model.weights, name: model.weights[name] * 1.5})
    model.save(tmp_path / "b")
    again = GPT2.from_folder(tmp_path / "b", dtype)
    assert again.config == model.config and again.weights.keys() == model.weights.keys()
    for name, array in model.weights.items():
        assert np.array_equal(again.weights[name], array), name
    ours = model.forward([IDS])
    assert np.array_equal(
        again.forward([IDS]), GPT2.from_folder(tmp_path / "b", dtype).forward([IDS])
    )
    theirs = load_reference(tmp_path / "b", dtype)
    assert theirs.config.eos_token_id == end and str(theirs.dtype) == f"torch.{dtype}"
    np.testing.assert_allclose(ours, reference_logits(theirs, IDS), rtol=1e-4, atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_with_its_vocabulary_it_is_a_whole_model(lm, tmp_path):
    lm.model.save(tmp_path / "b")
    lm.tokenizer.save(tmp_path / "b")
    options = {"max_new_tokens": 20, "seed": 1}
    again = gpt2np.load(tmp_path / "b")
    assert again.generate("The king", **options).ids == lm.generate("The king", **options).ids
    assert again.eos_token_ids == lm.eos_token_ids


def test_nothing_is_replaced(lm, tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.json").write_text("kept")
    with pytest.raises(InvalidArgumentError, match="b already exists; name a new or an empty"):
        lm.model.save(tmp_path / "b")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file/c"):
        lm.model.save(tmp_path / "file" / "c")
    assert (tmp_path / "b" / "config.json").read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "file"]
