"""A cancelled sequence, running or waiting, frees its place before the next decode step."""

from threading import Event

import pytest

from gpt2np import LanguageModel
from gpt2np.generation import Scheduler
from gpt2np.generation.async_engine import AsyncEngine


@pytest.fixture(scope="module")
def lm():
    return LanguageModel.load("bundled")


def start(lm, n, **limits):
    scheduler = Scheduler(lm.model, **limits)
    sequences = [
        lm.stream("The fox", max_new_tokens=9, seed=i, draft="none").sequence for i in range(n)
    ]
    for sequence in sequences:
        scheduler.add(sequence)
    return scheduler, sequences


def test_the_next_sequence_takes_the_place_in_the_same_step(lm):
    scheduler, [first, second, third] = start(lm, 3, max_running=2)
    scheduler.step()
    first.end("cancelled")
    assert scheduler.step() == [first]
    assert (len(first.ids), len(second.ids), len(third.ids)) == (1, 2, 1)
    assert scheduler.running == [second, third]


def test_waiting_sequences_leave_the_queue_in_one_step(lm):
    scheduler, [running, *waiting] = start(lm, 1001, max_running=1)
    scheduler.step()
    for sequence in waiting:
        sequence.end("cancelled")
    assert scheduler.step() == waiting
    assert scheduler.running == [running]
    assert scheduler.waiting == []


def test_an_interrupted_step_returns_the_sequences_later(lm, monkeypatch):
    scheduler, [first, _] = start(lm, 2)
    scheduler.step()
    first.end("cancelled")

    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(lm.model, "forward", fail)
    with pytest.raises(KeyboardInterrupt):
        scheduler.step()
    monkeypatch.undo()
    assert scheduler.step() == [first]


def test_the_engine_cancels_between_two_steps(lm):
    first, second = (lm.stream("The fox", max_new_tokens=5, seed=1, draft="none") for _ in range(2))
    steps, ended = [], Event()

    def on_step(scheduler):
        steps.append((len(first.sequence.ids), len(second.sequence.ids)))

    def notify(stream):
        if len(first.sequence.ids) == 3:
            engine.cancel(first)
        if not second.running:
            ended.set()

    engine = AsyncEngine(max_running=1, on_step=on_step)
    engine.add(first, notify)
    engine.add(second, notify)
    assert ended.wait(60)
    assert steps == [(1, 0), (2, 0), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4), (3, 5)]
