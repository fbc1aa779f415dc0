"""Token healing: the end of a prompt is generated again, with what follows."""

import asyncio
import random

import numpy as np
import pytest

from gpt2np import InvalidArgumentError, LanguageModel
from gpt2np.generation.token_healing import heal

STORY = "Once upon a time there was a little fox, who lived in the woods with 12 bears; he said: "


def plain_tokens(lm):
    special = set(lm.tokenizer.special_tokens.values())
    return {i: t for i, t in lm.tokenizer.vocabulary.token_bytes.items() if i not in special}


def test_the_dropped_end_is_the_longest_that_begins_a_longer_token(lm):
    tokens = plain_tokens(lm)
    for end in range(3, len(STORY) + 1, 3):
        ids = lm.encode_prompt(STORY[:end])
        rest, healing = heal(lm.tokenizer, ids, lm.bos_token_id, lm.model.config.vocab_size)
        expected = [
            n
            for n in range(1, len(ids) + 1)
            for data in [lm.tokenizer.decode_bytes(ids[len(ids) - n :])]
            if any(t.startswith(data) and t != data for t in tokens.values())
        ]
        n_dropped = max(expected, default=0)
        assert rest == (ids[: len(ids) - n_dropped] or [lm.bos_token_id])
        assert (healing is None) == (not n_dropped)
        if healing:
            assert [*healing.dropped] == ids[len(ids) - n_dropped :]


@pytest.mark.parametrize("text", [" capit", " the fo", "é", "12"])
def test_allowed_are_the_dropped_token_and_those_that_begin_with_the_text(lm, text):
    state = heal(lm.tokenizer, lm.encode_prompt("king" + text), None, 4096)[1]
    while state:
        expected = np.zeros(4096, bool)
        expected[state.dropped[0]] = True
        for i, token in plain_tokens(lm).items():
            expected[i] |= token.startswith(state.text)
        np.testing.assert_array_equal(state.allowed(), expected)
        longest = max(np.flatnonzero(expected), key=lambda i: len(plain_tokens(lm)[i]))
        assert state.advance(int(longest)) is None
        state = state.advance(state.dropped[0])


@pytest.mark.parametrize("options", [{"temperature": 0}, {}, {"num_beams": 3}], ids=str)
def test_prompt_and_text_are_what_the_ids_spell(lm, options):
    rng = random.Random(1)
    for seed in range(8):
        prompt = STORY[: rng.randrange(1, len(STORY) + 1)]
        result = lm.generate(prompt, token_healing=True, seed=seed, max_new_tokens=6, **options)
        prompt_ids = result.prompt_ids[result.prompt_ids[0] == lm.bos_token_id :]
        whole = lm.tokenizer.decode([*prompt_ids, *result.ids])
        assert whole == prompt + result.text or prompt.startswith(whole)


def test_a_prompt_that_ends_in_a_space_goes_on_with_a_word(bundled):
    lm, options = LanguageModel.load(bundled), {"temperature": 0, "max_new_tokens": 2}
    assert lm.generate("Once upon a time ", **options).text == "uttered a"
    healed = lm.generate("Once upon a time ", token_healing=True, **options)
    assert (healed.text, healed.tokens) == ("there was", [" there", " was"])
    assert healed.notice is None
    assert "or set `token_healing`" in lm.generate("Once upon a time ", **options).notice


def test_streams_batches_drafts_and_asyncio_give_the_same(lm):
    options = {"token_healing": True, "seed": 1, "max_new_tokens": 12}
    prompt = STORY[:-15]
    expected = lm.generate(prompt, **options)
    assert "".join(lm.stream(prompt, **options)) == expected.text
    assert lm.generate_batch(["The kin", prompt], **{**options, "seed": 0})[1] == expected
    assert lm.generate(prompt, draft="none", **options).ids == expected.ids
    assert asyncio.run(lm.agenerate(prompt, **options)) == expected


def test_healing_may_reach_into_a_prefix(lm):
    options = {"token_healing": True, "temperature": 0, "max_new_tokens": 5}
    prefix = lm.prefix(STORY[:40] + "The")
    expected = lm.generate([*prefix.ids, *lm.encode_prompt(" kin")], **options)
    assert lm.generate(" kin", prefix=prefix, **options).ids == expected.ids
    alone = lm.generate("", prefix=prefix, **options)
    assert alone.ids == lm.generate(prefix.ids, **options).ids


def test_special_tokens_stay(lm):
    end = lm.tokenizer.special_tokens["<|endoftext|>"]
    assert heal(lm.tokenizer, [end], end, 4096) == ([end], None)
    [the] = lm.tokenizer.encode("Th")
    assert heal(lm.tokenizer, [end, the], end, 4096)[0] == [end]
    assert heal(lm.tokenizer, [the], None, 4096) == ([the], None)


@pytest.mark.parametrize(
    "other", [{"choices": [" a"]}, {"regex": " a"}, {"json_schema": {}}], ids=str
)
def test_a_constraint_is_refused(lm, other):
    with pytest.raises(InvalidArgumentError, match="token_healing"):
        lm.generate("The kin", token_healing=True, **other)
