"""A cancelled sequence, running or waiting, frees its place before the next decode step."""

import asyncio
from threading import Thread

import pytest

from gpt2np.generation.async_engine import AsyncEngine
from gpt2np.generation.scheduler import Scheduler


def start(lm, n, **limits):
    scheduler = Scheduler(lm.model, **limits)
    sequences = [
        lm.stream("The fox", max_new_tokens=9, seed=i, draft="none").sequence for i in range(n)
    ]
    for sequence in sequences:
        scheduler.add(sequence)
    return scheduler, sequences


def test_cancelled_sequences_leave_and_the_next_takes_the_place_in_the_same_step(lm):
    scheduler, [first, second, *waiting, third] = start(lm, 100, max_running=2)
    scheduler.step()
    for sequence in (first, *waiting):
        sequence.end("cancelled")
    assert scheduler.step() == [first, *waiting]
    assert (len(first.ids), len(second.ids), len(third.ids)) == (1, 2, 1)
    assert scheduler.running == [second, third] and not scheduler.waiting


def test_the_engine_cancels_between_two_steps(lm):
    first, second = (
        lm.stream("The fox", max_new_tokens=5, seed=1, draft="none").sequence for _ in range(2)
    )
    steps = []

    def on_step(scheduler, updates):
        steps.append((len(first.ids), len(second.ids)))
        if len(first.ids) == 3:
            first.cancel()

    async def read():
        return [
            update async for updates in engine.run(lm.model, [first, second]) for update in updates
        ]

    engine = AsyncEngine(max_running=1, on_step=on_step)
    updates = asyncio.run(read())
    assert steps == [(1, 0), (2, 0), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4), (3, 5)]
    for sequence in (first, second):
        mine = [update for update in updates if update.sequence is sequence]
        assert [i for update in mine for i in update.ids] == sequence.ids
        assert "".join(update.text for update in mine) == sequence.completion.text
        assert [update.finish_reason for update in mine if update.finish_reason] == [
            sequence.finish_reason
        ]


def test_another_thread_cancels_a_stream_between_two_steps(lm):
    stream = lm.stream("Once", max_new_tokens=400, seed=1, draft="none")
    first, texts = next(stream), []
    thread = Thread(target=lambda: texts.append(stream.cancel()))
    thread.start()
    thread.join()
    assert stream.completion.finish_reason == "cancelled"
    assert first + texts[0] == stream.completion.text
    assert [*stream] == [] and stream.cancel() == ""


@pytest.mark.parametrize("is_async", [False, True])
def test_a_callback_cancels_its_stream(lm, is_async):
    def on_token(token):
        tokens.append(token)
        if len(tokens) == 3:
            stream.cancel()

    async def read():
        return "".join([piece async for piece in stream])

    tokens = []
    stream = lm.stream("Once", max_new_tokens=40, on_token=on_token, draft="none")
    assert (asyncio.run(read()) if is_async else "".join(stream)) == stream.completion.text
    assert (stream.completion.finish_reason, len(stream.completion.ids)) == ("cancelled", 3)
