"""Loading: the files of a model, its generation_config.json, and the names of the package."""

import json

import pytest

import gpt2np
from gpt2np import CheckpointError, GenerationOptions, InvalidArgumentError, LanguageModel


@pytest.fixture
def copy_of_bundled(bundled, tmp_path):
    for file in bundled.iterdir():
        if file.name != "model.safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").symlink_to(bundled / "model.safetensors")
    return tmp_path


def test_beams_that_the_models_file_proposes(copy_of_bundled):
    """Streaming and sampling options override num_beams of the model's file."""
    (copy_of_bundled / "generation_config.json").write_text('{"num_beams": 3}')
    lm = LanguageModel.load(copy_of_bundled)
    options = {"max_new_tokens": 8}
    beams = lm.generate("Once upon", **options)
    assert beams.ids == lm.generate("Once upon", num_beams=3, **options).ids
    greedy = lm.generate("Once upon", num_beams=1, temperature=0, **options)
    assert "".join(lm.stream("Once upon", **options)) == greedy.text
    sampled = lm.generate("Once upon", temperature=0.8, seed=1, **options)
    assert (
        sampled.ids == lm.generate("Once upon", temperature=0.8, seed=1, num_beams=1, **options).ids
    )


class TestDefaults:
    def change(self, folder, **content):
        (folder / "generation_config.json").write_text(json.dumps(content))
        return LanguageModel.load(folder)

    def test_the_models_file_comes_first(self, copy_of_bundled):
        lm = self.change(
            copy_of_bundled,
            temperature=0.5,
            top_k=3,
            top_p=0.7,
            max_new_tokens=7,
            eos_token_id=[1, 2],
        )
        assert lm.defaults == GenerationOptions(
            max_new_tokens=7, temperature=0.5, top_k=3, top_p=0.7
        )
        assert lm.eos_token_ids == {1, 2}
        assert len(lm.generate("x", seed=0).ids) <= 7

    def test_a_vocabulary_that_is_too_large_for_the_model(self, copy_of_bundled, gpt2_vocabulary):
        for name in ("vocab.json", "merges.txt"):
            (copy_of_bundled / name).write_bytes((gpt2_vocabulary / name).read_bytes())
        with pytest.raises(CheckpointError, match=r"vocabulary has 50257 tokens, .* only 4096"):
            LanguageModel.load(copy_of_bundled)


def test_an_empty_prompt_where_the_end_of_text_has_no_row(copy_of_bundled):
    (copy_of_bundled / "special_tokens_map.json").write_text('{"eos_token": "<|im_end|>"}')
    lm = LanguageModel.load(copy_of_bundled)
    assert lm.tokenizer.eos_token_id == 4096
    assert lm.generate("", seed=1, max_new_tokens=3).prompt_ids == [4095]


def test_a_special_token_that_the_model_has_no_row_for(copy_of_bundled):
    """As in fine-tunes that add a padding token without an embedding."""
    roles = {"pad_token": "[PAD]", "eos_token": "<|endoftext|>", "extra_special_tokens": ["<s>"]}
    (copy_of_bundled / "special_tokens_map.json").write_text(json.dumps(roles))
    lm = LanguageModel.load(copy_of_bundled)
    assert lm.tokenizer.vocab_size == 4098
    assert lm.generate("Once", seed=1, max_new_tokens=5).ids
    with pytest.raises(InvalidArgumentError, match="id 4096 is not in the model's vocabulary"):
        lm.generate([4096])
    tokens = {"4096": {"content": "[PAD]"}}  # not special: a text may contain it
    config = json.dumps({"added_tokens_decoder": tokens})
    (copy_of_bundled / "tokenizer_config.json").write_text(config)
    with pytest.raises(CheckpointError, match=r"has 4097 tokens, .* only 4096"):
        LanguageModel.load(copy_of_bundled)


def test_every_public_name_exists_and_is_documented():
    for name in gpt2np.__all__:
        assert getattr(gpt2np, name).__doc__
        assert name in dir(gpt2np) and name in gpt2np.__doc__ + gpt2np.errors.__doc__
    with pytest.raises(AttributeError, match="nonsense"):
        gpt2np.nonsense  # noqa: B018
