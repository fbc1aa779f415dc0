"""Ids, activations, logits processors and searches against stored answers of the peers."""

import numpy as np
import pytest
from helpers.decoding import decode_step
from helpers.stored_references import (
    HISTORY,
    OPTIONS,
    PROMPT,
    SEARCHES,
    TEXTS,
    random_logits,
    stored_arrays,
    stored_ids,
)

from gpt2np import GenerationOptions, Tokenizer
from gpt2np.generation.beam_search import beam_search
from gpt2np.generation.logits_processors import process_logits
from gpt2np.generation.request import Request
from gpt2np.generation.sampling import next_probabilities
from gpt2np.generation.sequence import start_sequence
from gpt2np.interp import trace
from gpt2np.model.ops import softmax


def test_ids_of_texts(bundled):
    tokenizer = Tokenizer.load(bundled)
    ids = [tokenizer.encode(text, disallowed_special=()) for text in TEXTS]
    assert ids == stored_ids()["texts"]
    assert [tokenizer.decode(text_ids) for text_ids in ids] == TEXTS


def test_every_hook_point(model):
    expected = stored_arrays()
    del expected["processed"]
    arrays = trace(model, PROMPT)
    assert set(arrays) == set(expected)
    for name, array in arrays.items():
        np.testing.assert_allclose(array, expected[name], atol=2e-5, err_msg=name)


@pytest.mark.parametrize("number", range(len(OPTIONS)), ids=lambda n: " ".join(OPTIONS[n]))
def test_logits_processors(number):
    options = GenerationOptions(**{"temperature": 1.0, "top_k": 0} | OPTIONS[number])
    logits = process_logits(random_logits()[number], options, HISTORY, [], {0})
    expected = softmax(stored_arrays()["processed"][number].astype(np.float64))
    np.testing.assert_allclose(next_probabilities(logits, options), expected, atol=1e-6)


@pytest.mark.parametrize("number", range(len(SEARCHES)), ids=lambda n: str(SEARCHES[n]))
def test_searches(model, number):
    options = GenerationOptions(temperature=0, max_new_tokens=20, **SEARCHES[number])
    if options.num_beams == 1:
        sequence = start_sequence(model, Request(PROMPT, options, {0}))
        while sequence.finish_reason is None:
            decode_step(model, [sequence])
        ids = sequence.ids
    else:
        ids = beam_search(model, Request(PROMPT, options, {0}))[0].ids
    assert ids == stored_ids()["searches"][number]
