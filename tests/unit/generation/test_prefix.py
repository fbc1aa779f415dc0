"""Prefixes: computed once, shared by many prompts."""

import numpy as np
import pytest

from gpt2np import ContextLengthError, InvalidArgumentError, LanguageModel

STORY = (
    "Once upon a time there was a little fox who lived in the woods. One day the fox met a bear."
)


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


def test_a_prefix_of_another_model_is_refused(lm):
    prefix = lm.prefix(STORY)
    other = LanguageModel.load("bundled")
    with pytest.raises(InvalidArgumentError, match="another model"):
        other.generate("x", prefix=prefix)


def test_prefix_and_prompt_must_fit_the_context(lm):
    prefix = lm.prefix(STORY)
    with pytest.raises(ContextLengthError, match="maximum context length is 512"):
        lm.generate([5] * lm.model.config.n_positions, prefix=prefix)
