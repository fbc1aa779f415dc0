"""Decode steps that an exception interrupts anywhere end all texts with what they have."""

import random
import sys
from pathlib import Path

import pytest
from helpers.equal_results import assert_equal_results

import gpt2np
from gpt2np import LanguageModel
from gpt2np.generation.scheduler import Scheduler

PROMPTS = ["Once upon a time", "The fox said: the fox", "1, 2, 3, 1, 2, 3, 1, 2"]
PACKAGE = str(Path(gpt2np.__file__).parent)
# Not interrupted. Python traces a line between the end of a `with` block and the release of its
# lock; no signal handler runs there.
CLEAN_UP = (
    "drop_rejected",
    "truncate",
    "clear",
    "__enter__",
    "__exit__",
    "single_threaded_blas",
)
OPTIONS = {"max_new_tokens": 24, "logprobs": 1}


class Interruption(BaseException):
    """Like KeyboardInterrupt, but no handler knows it."""


@pytest.fixture(scope="module")
def lm():
    return LanguageModel.load("bundled")


def start(lm, prompts=PROMPTS, n=1, **options):
    """Start `n` continuations of each prompt."""
    options = {**OPTIONS, **options, "num_return_sequences": n, "seed": 3}
    return [stream for prompt in prompts for stream in lm.streams(prompt, **options)]


def run(lm, streams, interrupt=lambda: None, max_running=16):
    """Run all streams in one batch; an interruption at a line ends the step, not the run."""
    scheduler, n_interrupted = Scheduler(lm.model, max_running), 0
    for stream in streams:
        scheduler.add(stream.sequence)
    while scheduler.busy:
        try:
            sys.settrace(interrupt())
            scheduler.step()
        except Interruption:
            n_interrupted += 1
        finally:
            sys.settrace(None)
    return n_interrupted


def interrupt_at_random(rng):
    """Return a trace function that raises Interruption at one of the step's lines."""
    left = rng.randrange(100_000)  # more than a step has, so that most steps are not interrupted

    def trace(frame, event, argument):
        nonlocal left
        path = frame.f_code.co_filename
        if not path.startswith(PACKAGE) or "stopping" in path:
            return None
        left -= event == "line"
        if left == 0 and frame.f_code.co_name not in CLEAN_UP:
            raise Interruption
        return trace

    return trace


@pytest.mark.parametrize("n_runs", [6, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "options",
    [{"draft": "none"}, {}, {"temperature": 0}, {"n": 2, "prompt_logprobs": 2}],
    ids=str,
)
def test_interrupted_anywhere(lm, options, n_runs):
    expected = start(lm, **options)
    assert run(lm, expected) == 0
    total = 0
    for seed in range(n_runs):
        streams, rng = start(lm, **options), random.Random(seed)
        total += run(lm, streams, lambda rng=rng: interrupt_at_random(rng))
        for stream, whole in zip(streams, expected, strict=True):
            completion, n = stream.completion, len(stream.completion.ids)
            assert completion.ids == whole.completion.ids[:n]
            assert_equal_results(completion.logprobs, whole.completion.logprobs[:n])
            if n:
                assert_equal_results(completion.prompt_logprobs, whole.completion.prompt_logprobs)
            assert completion.finish_reason == ("length" if n == 24 else "cancelled")
            assert completion.text == lm.tokenizer.decode(completion.ids)
    assert total > 0.4 * n_runs


def test_an_interrupted_score_is_computed_again(bundled, monkeypatch):
    lm = LanguageModel.load(bundled)
    texts = ["Once upon a time there was a fox. " * 40, "The king"]
    expected, forward, calls = lm.score(texts), lm.model.forward, []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return forward(*args, **kwargs)

    monkeypatch.setattr(lm.model, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lm.score(texts)
    assert lm.score(texts) == expected
