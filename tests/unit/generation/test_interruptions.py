"""Interruptions at random times end texts with what they have; model and caches stay exact."""

import random
import signal
from collections import deque
from functools import partial

import numpy as np
import pytest
from helpers.equal_results import assert_equal_results
from helpers.interruptions import TimerInterrupter
from helpers.random_models import random_model

from gpt2np import LanguageModel, Tokenizer
from gpt2np.errors import GenerationInterrupted
from gpt2np.generation.complete import join_continuations
from gpt2np.generation.scheduler import Scheduler
from gpt2np.runtime.ranks import max_processes

PROMPTS = ["Once upon a time", "The fox said: the fox", "1, 2, 3, 1, 2, 3, 1, 2"]
OPTIONS = [
    {"draft": "none", "logprobs": 1},
    {"frequency_penalty": 0.5, "no_repeat_ngram_size": 2},
    {"temperature": 0, "logprobs": 2, "prompt_logprobs": 1},
    {"regex": "[ a-z]{5,40}", "repetition_penalty": 1.3},
    {"stop": ["zzz", "e"], "logprobs": 0},
    {"min_p": 0.01},
]


@pytest.fixture(scope="module")
def lm(bundled):
    tokenizer = Tokenizer.load(bundled)
    sizes = {"vocab_size": tokenizer.vocab_size, "n_positions": 48}
    model = random_model(n_layer=2, n_embd=16, n_head=2, n_inner=32, **sizes)
    lm = LanguageModel(model, tokenizer)
    lm.use_draft(bundled / "ngram_draft.safetensors")
    lm.generate_batch(PROMPTS, max_new_tokens=9, seed=1)  # packs the weights
    return lm


def streams_of(lm, rng):
    """Return a list of streams with random options; some of them have the same prompt."""
    streams = []
    for seed in range(rng.randrange(1, 4)):
        options = {"max_new_tokens": 8} | rng.choice(OPTIONS)
        prompt, n = rng.choice(PROMPTS), rng.choice([1, 1, 3])
        streams += [lm.stream(prompt, **options, seed=seed + i) for i in range(n)]
    return streams


def check_scheduler(lm, interrupt, rng):
    seed = rng.random()
    streams, expected = (streams_of(lm, random.Random(seed)) for _ in range(2))
    for stream in expected:
        run_all(lm, [stream])
    scheduler = Scheduler(lm.model, max_running=rng.choice([1, 2, 16]))
    for stream in streams:
        scheduler.add(stream.sequence)
    texts = [""] * len(streams)
    while scheduler.busy:
        _, error = interrupt(scheduler.step)
        assert not (error and any(stream.running for stream in streams))
        for i, stream in enumerate(streams):
            texts[i] += interrupt(stream.new_text)[0] or ""
    for i, stream in enumerate(streams):
        assert texts[i] + stream.new_text() == stream.completion.text
        check_beginning(lm, stream.completion, expected[i].completion)


def check_beginning(lm, completion, whole):
    """Check that a completion has the first ids of `whole`, and their text."""
    n = len(completion.ids)
    assert completion.ids == whole.ids[:n]
    if completion.finish_reason != "cancelled":
        assert_equal_results(completion, whole)
    if completion.logprobs is not None:
        assert_equal_results(completion.logprobs, whole.logprobs[:n])
    assert lm.tokenizer.decode(completion.ids).startswith(completion.text)
    if completion.finish_reason == "cancelled":
        decoded = lm.tokenizer.decode(completion.ids)
        assert completion.options.stop or completion.text == decoded


def run_all(lm, streams):
    scheduler = Scheduler(lm.model)
    for stream in streams:
        scheduler.add(stream.sequence)
    while scheduler.busy:
        scheduler.step()


def check_stream(lm, interrupt, rng):
    options = {"max_new_tokens": 8} | rng.choice(OPTIONS) | {"seed": rng.randrange(99)}
    prompt, text = rng.choice(PROMPTS), ""
    expected, stream = lm.generate(prompt, **options), lm.stream(prompt, **options)
    while True:
        piece, error = interrupt(next, stream, None)
        if piece is None and not error:
            break
        text += piece or ""
    assert text == stream.completion.text
    check_beginning(lm, stream.completion, expected)


def check_generate(lm, interrupt, rng):
    options = {"max_new_tokens": 6, "seed": rng.randrange(99)} | rng.choice(OPTIONS[:6])
    if rng.random() < 0.2:
        options = {"max_new_tokens": 6, "num_beams": 3, "temperature": 0, "logprobs": 1, "seed": 1}
    prompts = rng.sample(PROMPTS, rng.choice([1, 3]))
    generate = partial(lm.generate_batch, prompts, **options)
    generate.__qualname__ = f"generate_batch {len(prompts)}"
    expected = generate()
    result, error = interrupt(generate)
    if isinstance(error, GenerationInterrupted):
        for completion, whole in zip(error.completions, expected, strict=True):
            check_beginning(lm, completion, whole)
    assert_equal_results(result or generate(), expected)


def check_caches(lm, interrupt, rng):
    model, ids = lm.model, lm.tokenizer.encode("Once upon a time there was a fox, and a king " * 4)
    ids = [ids[:40], ids[3:43]]
    whole = model.forward(ids)
    caches, done = [model.new_cache(), model.new_cache()], 0
    while done < 40:
        n = min(rng.choice([1, 1, 7, 20]), 40 - done)
        new = [each[done : done + n] for each in ids]
        logits, error = interrupt(model.forward, new, caches)
        if error:
            assert [cache.length for cache in caches] == [done, done]
        else:
            rows = [done + i * 40 + k for i in range(2) for k in range(n)]
            np.testing.assert_allclose(logits, whole[rows], atol=1e-4)
            done += n
        i = rng.randrange(2)
        if rng.random() < 0.3:
            copy, error = interrupt(caches[i].copy)
            assert error or copy.length == done
            caches[i] = caches[i] if error else copy
        if rng.random() < 0.1:
            interrupt(caches[i].truncate, caches[i].length // 2)
            done = min(cache.length for cache in caches)
            for cache in caches:
                cache.truncate(done)


CHECKS = [check_scheduler, check_stream, check_generate, check_caches]


def run_checks(lm, interrupt, count):
    """Run the checks in turn until `count` calls have been interrupted."""
    while interrupt.n_interrupted < count:
        for check in CHECKS:
            seed = interrupt.rng.randrange(10**9)
            try:
                check(lm, interrupt, random.Random(seed))
            except Exception as error:
                raise AssertionError(f"{check.__name__}, seed {seed}") from error


@pytest.fixture
def restored():
    handler = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)


pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers")


@pytest.mark.parametrize("count", [20 * len(CHECKS), pytest.param(5000, marks=pytest.mark.slow)])
def test_signal_at_any_time_leaves_texts_and_caches_exact(lm, restored, count):
    run_checks(lm, TimerInterrupter(random.Random(count)), count)


@pytest.mark.skipif(max_processes() == 1, reason="one process only")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # logging's at fork
@pytest.mark.parametrize("count", [5, pytest.param(1000, marks=pytest.mark.slow)])
def test_signal_at_any_time_with_two_ranks_leaves_texts_and_caches_exact(lm, restored, count):
    lm.model.processes = 2
    try:
        # Each interruption ends the processes, and a call that starts them takes far longer.
        run_checks(lm, TimerInterrupter(random.Random(count), growth=2), count)
        assert lm.model.processes == 2
    finally:
        lm.model.processes = 1


def test_ctrl_c_between_two_queues_ends_the_text(lm):
    """A sequence that is in no queue then would never end."""

    class Interrupted(deque):
        def popleft(self):
            super().popleft()
            raise KeyboardInterrupt

    stream, scheduler = lm.stream("The fox", max_new_tokens=5, seed=1), Scheduler(lm.model)
    scheduler.waiting = Interrupted([stream.sequence])
    with pytest.raises(KeyboardInterrupt):
        scheduler.step()
    assert stream.completion.finish_reason == "cancelled" and not scheduler.busy


def test_ctrl_c_while_completions_are_made_loses_no_text(lm, monkeypatch):
    """Completions of many texts take a second."""
    expected, signals = lm.generate_batch(PROMPTS, max_new_tokens=5, seed=1), [KeyboardInterrupt]

    def interrupt(sequences):
        if signals:
            raise signals.pop()
        return join_continuations(sequences)

    monkeypatch.setattr("gpt2np.generation.complete.join_continuations", interrupt)
    with pytest.raises(GenerationInterrupted) as info:
        lm.generate_batch(PROMPTS, max_new_tokens=5, seed=1)
    assert info.value.completions == expected


def test_a_second_ctrl_c_at_once_ends_the_text_as_well(lm, monkeypatch):
    stream = lm.stream("The fox", max_new_tokens=20, seed=1)
    next(stream)

    def interrupt(*args, **kwargs):
        monkeypatch.undo()  # each raises once
        monkeypatch.setattr("gpt2np.generation.sequence.new_detokenizer", second)
        raise KeyboardInterrupt

    def second(request):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(lm.model, "forward", interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    list(stream)
    completion = stream.completion
    assert completion.finish_reason == "cancelled"
    assert completion.text == lm.tokenizer.decode(completion.ids)
