"""The option max_time: a deadline ends one sequence, whether it runs or waits, and no other."""

import time

import pytest

from gpt2np import LanguageModel
from gpt2np.generation.scheduler import Scheduler

PROMPTS = ["Once upon a time", "The fox said: the fox", "1, 2, 3, 1, 2, 3, 1, 2"]


class Clock:
    """A clock in seconds that advances by 1 at each reading after `start`."""

    def __init__(self):
        self.now, self.is_running = 0.0, False

    def start(self):
        self.is_running = True

    def monotonic(self):
        self.now += self.is_running
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    return clock


@pytest.fixture(scope="module")
def whole():
    lm = LanguageModel.load("bundled")
    return lm, [lm.generate(prompt, seed=i, max_new_tokens=30) for i, prompt in enumerate(PROMPTS)]


def run(lm, clock, streams, max_running=16):
    scheduler, finished = Scheduler(lm.model, max_running), []
    for stream in streams:
        scheduler.add(stream.sequence)
    clock.start()
    while scheduler.busy:  # one reading of the clock per step
        ended = scheduler.step()
        finished.append([i for i, stream in enumerate(streams) if stream.sequence in ended])
    return finished


@pytest.mark.parametrize("draft", ["auto", "none"])
def test_a_running_sequence_ends_and_the_others_go_on(whole, clock, draft):
    lm, expected = whole
    streams = [
        lm.stream(prompt, seed=i, max_new_tokens=30, draft=draft, max_time=4.5 if i == 1 else None)
        for i, prompt in enumerate(PROMPTS)
    ]
    run(lm, clock, streams)
    for i, (stream, other) in enumerate(zip(streams, expected, strict=True)):
        completion = stream.completion
        if i == 1:
            assert completion.finish_reason == "time"
            assert (
                4 <= len(completion.ids) < 30 and completion.ids == other.ids[: len(completion.ids)]
            )
            assert draft == "auto" or len(completion.ids) == 4
            assert completion.text and other.text.startswith(completion.text)
        else:
            assert completion.ids == other.ids and completion.finish_reason == "length"


def test_a_waiting_sequence_ends_at_its_deadline(whole, clock):
    lm, expected = whole
    streams = [
        lm.stream(prompt, seed=i, max_new_tokens=30, draft="none", max_time=[None, 9.5, None][i])
        for i, prompt in enumerate(PROMPTS)
    ]
    finished = run(lm, clock, streams, max_running=1)
    assert [i for i, ended in enumerate(finished) if ended] == [9, 29, 59]
    assert (finished[9], finished[29], finished[59]) == ([1], [0], [2])
    assert streams[1].completion.finish_reason == "time" and streams[1].completion.text == ""
    for i in (0, 2):
        assert streams[i].completion.ids == expected[i].ids


def test_beams_return_the_best_text_so_far(whole, clock):
    lm, _ = whole
    options = {"num_beams": 3, "temperature": 0, "num_return_sequences": 2}
    clock.start()
    completion = lm.generate("Once upon a time", max_new_tokens=30, max_time=4.5, **options)
    same = lm.generate("Once upon a time", max_new_tokens=5, **options)
    assert completion.finish_reason == "time" and same.finish_reason == "length"
    assert completion.ids == same.ids and completion.text == same.text
    assert completion.alternatives[0].ids == same.alternatives[0].ids
