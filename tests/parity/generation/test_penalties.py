"""Biases, penalties and bans against transformers' logits processors and OpenAI's definition."""

from itertools import count, islice

import numpy as np
import pytest
from helpers.peers import torch, transformers

from gpt2np import GenerationOptions, InvalidArgumentError
from gpt2np.generation.logits_processors import process_logits

END_IDS = {3, 7}
KINDS = {
    "normal": lambda rng, size: rng.normal(0, 3, size),
    "gpt2's level": lambda rng, size: rng.normal(-90, 5, size),
    "huge": lambda rng, size: rng.normal(0, 1e30, size),
    "ties": lambda rng, size: rng.integers(-2, 3, size).astype(float),
    "all equal": lambda rng, size: np.zeros(size),
    "signed zeros": lambda rng, size: rng.choice([0.0, -0.0, 1.0, -1.0], size),
    "some ruled out": lambda rng, size: np.where(rng.random(size) < 0.4, -np.inf, rng.normal(size)),
}


@pytest.fixture(params=[100, pytest.param(1500, marks=pytest.mark.slow)])
def cases(request):
    """A function that returns 100 random cases (`-m slow`: 1,500) of a seed."""
    return lambda seed: islice(random_cases(seed), request.param)


def random_cases(seed):
    """Random logits, prompts and generated ids, of many kinds and lengths."""
    rng = np.random.default_rng(seed)
    for number in count():
        size = int(rng.choice([8, 50, 400]))
        logits = list(KINDS.values())[number % len(KINDS)](rng, size).astype(np.float32)
        logits[rng.integers(size)] = 1.5  # at least one token is not ruled out
        alphabet = int(rng.choice([2, 5, size]))  # a small one repeats ids
        ids = rng.integers(0, alphabet, rng.integers(1, 40)).tolist()
        cut = int(rng.integers(1, len(ids) + 1))
        yield rng, logits, ids[:cut], ids[cut:]


def ours(logits, prompt, generated, **options):
    """Return all -inf where every token is ruled out."""
    before = logits.copy()
    options = GenerationOptions(max_new_tokens=1000, **options)
    try:
        result = process_logits(logits, options, prompt, generated, END_IDS)
    except InvalidArgumentError as error:
        assert "every token is ruled out" in str(error)
        result = np.full_like(logits, -np.inf)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(logits, before)  # the input is unchanged
    return result


def processor(name, *values):
    return getattr(transformers, name + "LogitsProcessor")(*values)


def theirs(change, logits, prompt, generated):
    return change(torch.tensor([[*prompt, *generated]]), torch.tensor(logits)[None])[0].numpy()


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_repetition_penalty(cases):
    for rng, logits, prompt, generated in cases(1):
        penalty = float(rng.choice([0.5, 1.01, 1.3, 2.0, 100.0]))
        expected = theirs(processor("RepetitionPenalty", penalty), logits, prompt, generated)
        if np.isfinite(expected.max()):
            result = ours(logits, prompt, generated, repetition_penalty=penalty)
            np.testing.assert_array_equal(result, expected)


def test_no_repeat_ngram(cases):
    for rng, logits, prompt, generated in cases(2):
        size = int(rng.integers(1, 5))
        expected = theirs(processor("NoRepeatNGram", size), logits, prompt, generated)
        result = ours(logits, prompt, generated, no_repeat_ngram_size=size)
        np.testing.assert_array_equal(result, expected)


def random_words(rng, size, prompt, generated):
    """Random bad words; the text ends with the start of some, so that their last id is banned."""
    ids, words = [*prompt, *generated], []
    for _ in range(rng.integers(1, 5)):
        begun = ids[len(ids) - int(rng.integers(0, min(4, len(ids)) + 1)) :]
        words.append([*begun, int(rng.integers(size))])
    return words


def test_bad_words(cases):
    for rng, logits, prompt, generated in cases(3):
        words = random_words(rng, len(logits), prompt, generated)
        words = [word for word in words if word not in [[end] for end in END_IDS]]
        if not words:
            continue
        expected = theirs(processor("NoBadWords", words), logits, prompt, generated)
        np.testing.assert_array_equal(
            ours(logits, prompt, generated, bad_words_ids=words), expected
        )


def test_logit_bias(cases):
    for rng, logits, prompt, generated in cases(4):
        ids = rng.choice(len(logits), rng.integers(1, 8), replace=False)
        bias = {int(i): float(rng.normal(0, 20)) for i in ids}
        biases = processor("SequenceBias", {(i,): value for i, value in bias.items()})
        expected = theirs(biases, logits, prompt, generated)
        np.testing.assert_array_equal(ours(logits, prompt, generated, logit_bias=bias), expected)


def test_min_new_tokens_and_ignore_eos(cases):
    for rng, logits, prompt, generated in cases(5):
        least = int(rng.integers(0, 30))
        no_end = processor("MinNewTokensLength", len(prompt), least, sorted(END_IDS))
        expected = theirs(no_end, logits, prompt, generated)
        result = ours(logits, prompt, generated, min_new_tokens=least)
        np.testing.assert_array_equal(result, expected)
        never = theirs(processor("SuppressTokens", sorted(END_IDS)), logits, prompt, generated)
        np.testing.assert_array_equal(ours(logits, prompt, generated, ignore_eos=True), never)


def test_presence_and_frequency(cases):
    """logit − presence·[count > 0] − frequency·count over the generated ids (OpenAI's API)."""
    for rng, logits, prompt, generated in cases(6):
        presence, frequency = rng.uniform(-2, 2, 2)
        expected = logits.astype(np.float64)
        for token_id in set(generated):
            expected[token_id] -= presence + frequency * generated.count(token_id)
        options = {"presence_penalty": presence, "frequency_penalty": frequency}
        result = ours(logits, prompt, generated, **options)
        np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-5)


def test_all_in_order(cases):
    for rng, logits, prompt, generated in cases(7):
        words = random_words(rng, len(logits), prompt, generated)
        bias = {int(rng.integers(len(logits))): 4.0}
        processors = transformers.LogitsProcessorList(
            [
                processor("SequenceBias", {(i,): value for i, value in bias.items()}),
                processor("RepetitionPenalty", 1.7),
                processor("NoRepeatNGram", 3),
                processor("NoBadWords", words),
                processor("MinNewTokensLength", len(prompt), 10, sorted(END_IDS)),
            ]
        )
        expected = theirs(processors, logits, prompt, generated)
        options = {"logit_bias": bias, "repetition_penalty": 1.7, "no_repeat_ngram_size": 3}
        options |= {"bad_words_ids": words, "min_new_tokens": 10}
        np.testing.assert_array_equal(ours(logits, prompt, generated, **options), expected)


def test_nothing_asked_for_costs_nothing():
    logits = np.ones(4, np.float32)
    assert process_logits(logits, GenerationOptions(), [1], [2], END_IDS) is logits
