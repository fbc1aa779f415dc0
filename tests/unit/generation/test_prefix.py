"""Prefixes: computed once, shared by many prompts, kept in files."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save

from gpt2np import CheckpointError, ContextLengthError, InvalidArgumentError, LanguageModel

STORY = (
    "Once upon a time there was a little fox who lived in the woods. One day the fox met a bear."
)


@pytest.fixture(scope="module")
def lm():
    return LanguageModel.load("bundled")


@pytest.fixture
def counted(lm, monkeypatch):
    """The number of tokens of each forward pass."""
    counts, forward = [], lm.model.forward

    def count(sequences, *args, **kwargs):
        counts.append(sum(map(len, sequences)))
        return forward(sequences, *args, **kwargs)

    monkeypatch.setattr(lm.model, "forward", count)
    return counts


@pytest.mark.parametrize("prompt", ["", " The bear", [262, 300]])
def test_the_text_is_that_of_prefix_and_prompt_together(lm, counted, prompt):
    prefix = lm.prefix(STORY)
    counted.clear()
    options = {"max_new_tokens": 20, "seed": 7, "draft": "none"}
    result = lm.generate(prompt, prefix=prefix, **options)
    assert max(counted) < len(prefix.ids) / 2  # the prefix is not computed again
    ids = lm.encode_prompt(prompt) if isinstance(prompt, str) and prompt else list(prompt)
    assert result.prompt_ids == [*prefix.ids, *ids]
    assert result.prompt.startswith(STORY)
    assert result.ids == lm.generate([*prefix.ids, *ids], **options).ids


def test_many_prompts_and_continuations_share_a_prefix(lm, counted):
    prefix = lm.prefix(STORY)
    counted.clear()
    prompts = [" The bear", " The fox", ""]
    options = {"max_new_tokens": 10, "seed": 1, "num_return_sequences": 3, "draft": "none"}
    results = lm.generate_batch(prompts, prefix=prefix, **options)
    assert sum(counted) < 3 * 3 * 12 + 3 * 8
    for prompt, result in zip(prompts, results, strict=True):
        expected = lm.generate(STORY + prompt, **{**options, "seed": result.seed})
        found = [result, *result.alternatives]
        if lm.encode_prompt(STORY + prompt) == result.prompt_ids:
            assert [c.ids for c in found] == [c.ids for c in (expected, *expected.alternatives)]
    assert prefix.cache.length == len(prefix.ids)


def test_prompt_logprobs_include_the_prefix(lm):
    prefix = lm.prefix(STORY)
    result = lm.generate(" The", prefix=prefix, max_new_tokens=2, prompt_logprobs=0, seed=0)
    expected = lm.score(result.prompt_ids, from_end_of_text=False).logprobs
    found = [token.logprob for token in result.prompt_logprobs[1:]]
    np.testing.assert_allclose(found, expected[1:], atol=1e-4)


def test_a_prefix_can_be_saved(lm, tmp_path):
    prefix = lm.prefix(STORY)
    prefix.save(tmp_path / "story.safetensors")
    other = LanguageModel.load("bundled")
    loaded = other.load_prefix(tmp_path / "story.safetensors")
    assert (loaded.ids, loaded.text) == (prefix.ids, STORY)
    options = {"max_new_tokens": 20, "seed": 7}
    expected = lm.generate(" The bear", prefix=prefix, **options)
    assert other.generate(" The bear", prefix=loaded, **options) == expected


def test_a_prefix_of_another_model_is_refused(lm, tmp_path):
    prefix = lm.prefix(STORY)
    other = LanguageModel.load("bundled")
    with pytest.raises(InvalidArgumentError, match="another model, or before a weight was changed"):
        other.generate("x", prefix=prefix)
    name = "ln_f.bias"
    other.model.weights[name] = other.model.weights[name] + 1
    prefix.save(tmp_path / "story.safetensors")
    with pytest.raises(InvalidArgumentError, match="other weights"):
        other.load_prefix(tmp_path / "story.safetensors")


@pytest.mark.parametrize("change", ["version", "tile", "length"])
def test_a_file_of_another_layout_is_refused(lm, tmp_path, change):
    path = tmp_path / "story.safetensors"
    lm.prefix(STORY).save(path)
    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in ("keys", "values", "ids")}
        description = json.loads(file.metadata()["gpt2np_prefix"])
    if change == "version":
        description["version"] += 1
    elif change == "tile":
        arrays["values"] = np.ascontiguousarray(arrays["values"][..., :32, :])
    else:
        arrays["ids"] = np.tile(arrays["ids"], 200)
    path.write_bytes(save(arrays, {"gpt2np_prefix": json.dumps(description)}))
    with pytest.raises(CheckpointError, match=r"story\.safetensors"):
        lm.load_prefix(path)


@pytest.mark.parametrize("content", [None, b"", b"\x08\0\0\0\0\0\0\0{}      "])
def test_a_damaged_file_is_named(lm, tmp_path, content):
    path = tmp_path / "story.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"story\.safetensors"):
        lm.load_prefix(path)


def test_prefix_and_prompt_must_fit_the_context(lm):
    prefix = lm.prefix(STORY)
    with pytest.raises(ContextLengthError, match=r"more than the model.s context"):
        lm.generate([5] * lm.model.config.n_positions, prefix=prefix)
