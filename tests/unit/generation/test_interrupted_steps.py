"""Decode steps that an exception interrupts anywhere: the next step goes on with the same ids."""

import random
import sys

import pytest

from gpt2np import LanguageModel
from gpt2np.generation import Scheduler

PROMPTS = ["Once upon a time", "The fox said: the fox", "1, 2, 3, 1, 2, 3, 1, 2"]
CLEAN_UP = ("drop_rejected", "truncate", "clear", "__enter__", "__exit__")  # not interrupted
OPTIONS = {"max_new_tokens": 24, "seed": 3, "logprobs": 1}


class Interruption(BaseException):
    """Like KeyboardInterrupt, but no handler knows it."""


@pytest.fixture(scope="module")
def lm():
    return LanguageModel.load("bundled")


def start(lm, **options):
    return [lm.stream(prompt, **OPTIONS, **options) for prompt in PROMPTS]


def run(lm, streams, interrupt=lambda: None):
    """Run all streams in one batch; an interruption at a line ends the step, not the run."""
    scheduler, n_interrupted = Scheduler(lm.model), 0
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
    left = rng.randrange(15_000)  # more than a step has, so that some steps are not interrupted

    def trace(frame, event, argument):
        nonlocal left
        if "gpt2np" not in frame.f_code.co_filename or "stopping" in frame.f_code.co_filename:
            return None
        left -= event == "line"
        if left == 0 and frame.f_code.co_name not in CLEAN_UP:
            raise Interruption
        return trace

    return trace


@pytest.mark.parametrize("options", [{"draft": "none"}, {}, {"temperature": 0}], ids=str)
def test_interrupted_anywhere(lm, options):
    expected = start(lm, **options)
    assert run(lm, expected) == 0
    total = 0
    for seed in range(8):
        streams, rng = start(lm, **options), random.Random(seed)
        total += run(lm, streams, lambda rng=rng: interrupt_at_random(rng))
        for stream, whole in zip(streams, expected, strict=True):
            assert stream.completion.ids == whole.completion.ids
            assert stream.completion.logprobs == whole.completion.logprobs
            assert stream.completion.finish_reason == "length"
    assert total > 20
