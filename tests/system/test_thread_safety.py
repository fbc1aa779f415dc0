"""Sixteen threads share one object of each public class: the results equal those of one thread."""

import asyncio
import random
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest
from helpers.equal_results import assert_equal_results

from gpt2np.model import last_token_indices

N_THREADS, SWITCH_INTERVAL_S = 16, 1e-5
PROMPTS = ["Once upon a time", "The fox said: the fox", "1, 2, 3, 1, 2, 3", "A king " * 12]
TEXTS = [*PROMPTS, "naïve 中文 \N{SNOWMAN}", " x" * 300, "def f(x):\n    return x ** 2\n"]


def language_model(lm):
    calls = [
        partial(lm.generate, prompt, seed=i, max_new_tokens=3, num_return_sequences=1 + i % 2)
        for i, prompt in enumerate(PROMPTS)
    ]
    calls.append(partial(lm.generate_batch, PROMPTS, seed=5, max_new_tokens=2, logprobs=1))
    calls.append(partial(lm.generate, "The", num_beams=3, temperature=0, max_new_tokens=4, seed=0))
    calls.append(partial(lm.score, PROMPTS))
    calls.append(lambda: asyncio.run(lm.agenerate("The fox", seed=2, max_new_tokens=4)))
    return calls


def model(lm):
    rng = np.random.default_rng(0)

    def forward(sequences):
        return lm.model.forward(sequences, logits_indices=last_token_indices(sequences))

    batches = [
        [rng.integers(0, 4096, n) for n in lengths] for lengths in ([1], [5, 3], [90], [2] * 9)
    ]
    return [partial(forward, batch) for batch in batches]


def kv_cache(lm):
    """The threads copy and read one cache; each appends to its copies."""
    cache = lm.model.new_cache()
    ids = lm.tokenizer.encode(PROMPTS[3])
    lm.model.forward([ids], [cache])

    def append(copy, new):
        copies = [copy(), copy()]
        logits = lm.model.forward([new, new[:1]], copies)
        copies[0].truncate(len(ids))
        again = lm.model.forward([new], copies[:1])
        assert_equal_results(logits[: len(new)], again)
        assert cache.length == len(ids)
        return logits

    return [
        partial(append, cache.copy, [5, 6, 7]),
        partial(append, cache.copy, [9]),
    ]


def text_stream(lm):
    def read(prompt, **options):
        stream = lm.stream(prompt, max_new_tokens=3, **options)
        assert "".join(stream) == stream.completion.text
        return stream.completion

    return [
        partial(read, PROMPTS[0], seed=1),
        partial(read, PROMPTS[3], seed=2, logprobs=1, prompt_logprobs=1),
        partial(read, PROMPTS[2], seed=3, stop=["2"], draft="none"),
    ]


def tokenizer(lm):
    tokenizer = lm.tokenizer
    calls = [partial(tokenizer.encode, text) for text in TEXTS]
    calls += [partial(tokenizer.decode, tokenizer.encode(text)) for text in TEXTS]
    ids = tokenizer.encode(TEXTS[4])
    return [*calls, partial(tokenizer.encode_batch, TEXTS), partial(tokenizer.token_texts, ids)]


def prefix(lm):
    shared = lm.prefix(PROMPTS[3])
    options = {"prefix": shared, "max_new_tokens": 4}
    return [
        partial(lm.generate, " and a fox", seed=1, **options),
        partial(lm.generate_batch, ["", " the"], seed=2, num_return_sequences=2, **options),
    ]


def constraint(lm):
    """All threads use one constraint, whose automaton and masks are computed on demand."""
    options = {"max_new_tokens": 8, "seed": 1}
    patterns = ["[a-z ]{3,30}", "(fox|king)( and (fox|king))*", r"\d+(, \d+)*"]
    calls = [partial(lm.generate, "The", regex=pattern, **options) for pattern in patterns]
    return [*calls, partial(lm.generate, "The", choices=["fox", "king", "old king"], **options)]


# With several processes, the others are like `language_model` and `kv_cache`.
SLOW = [pytest.param(calls, 2, marks=pytest.mark.slow) for calls in (model, text_stream, prefix)]
ALL = (language_model, model, kv_cache, text_stream, prefix, tokenizer, constraint)
CASES = [*((calls, 1) for calls in ALL), (language_model, 2), (kv_cache, 2), *SLOW]


@pytest.mark.parametrize("seconds", [0.05, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("calls_of", "ranks"), CASES, ids=lambda value: getattr(value, "__name__", None)
)
def test_sixteen_threads(lm, calls_of, ranks, seconds, monkeypatch):
    calls = calls_of(lm)
    expected = [call() for call in calls]
    if ranks > 1:
        lm.model.processes = ranks
        calls = calls_of(lm)  # with KV caches in shared memory
    counts, failures = [0] * N_THREADS, []
    end = time.perf_counter() + seconds

    def work(number):
        rng = random.Random(number)
        while not counts[number] or time.perf_counter() < end:
            i = rng.randrange(len(calls))
            try:
                assert_equal_results(calls[i](), expected[i])
            except BaseException as error:
                failures.append((i, repr(error), expected[i]))
            counts[number] += 1

    threads = [threading.Thread(target=work, args=[number]) for number in range(N_THREADS)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(seconds + 300)
    finally:
        sys.setswitchinterval(interval)
        lm.model.processes = 1
    assert not any(thread.is_alive() for thread in threads)
    assert not failures, failures[:3]
    assert all(counts)
