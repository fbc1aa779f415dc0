"""asyncio: calls share passes, and failures on the engine's thread reach their readers in time."""

import asyncio
import gc
import os
import random
import sys
import threading
import time

import pytest

from gpt2np import GPT2NPError, InvalidArgumentError
from gpt2np.generation.async_engine import AsyncEngine, engine_of
from gpt2np.generation.sequence import RunningSequence

OPTIONS = {"max_new_tokens": 10, "seed": 3, "draft": "none"}
SECONDS = 20  # of a call that hangs without the mended fault; a text takes 0.1


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, SECONDS))


def check_works(lm):
    """Check that the model's engine still generates texts."""
    assert run(lm.agenerate("The fox", **OPTIONS)) == lm.generate("The fox", **OPTIONS)


async def read(stream):
    return "".join([piece async for piece in stream])


def raising(error, after=3):
    """Return a callback that raises an error at a token."""
    tokens = []

    def on_token(token):
        tokens.append(token)
        if len(tokens) == after:
            raise error

    return on_token


@pytest.mark.parametrize(
    "error", [SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()]
)
def test_any_exception_of_a_callback_reaches_all_readers(lm, error):
    async def both():
        other = lm.stream("A king", max_new_tokens=400, seed=1, ignore_eos=True)
        tasks = [lm.agenerate("The fox", **OPTIONS, on_token=raising(error)), read(other)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    for result in run(both()):
        assert isinstance(result, GPT2NPError), result
        assert f"a {type(error).__name__} has ended the generation" in str(result)
    check_works(lm)


def test_failure_of_another_text_spares_texts_that_have_ended_and_that_wait(lm):
    """The third token ends one text, and the callback of another raises, when a third arrives."""
    late = []

    def on_token(token):
        if token.index == 0 and len(late) == 0 and next(tokens) == 2:
            thread = threading.Thread(target=lambda: late.append(run(lm.agenerate("A", **OPTIONS))))
            thread.start()
            while not engine_of(lm.model)._new:
                time.sleep(0.001)
            late.append(thread)
            raise SystemExit

    async def both():
        short = {**OPTIONS, "max_new_tokens": 3}
        ended = asyncio.create_task(lm.agenerate("Once", **short))
        failed = asyncio.create_task(lm.agenerate("The fox", **OPTIONS, on_token=on_token))
        return await asyncio.gather(ended, failed, return_exceptions=True)

    tokens = iter(range(20))
    ended, failed = run(both())
    late[0].join(SECONDS)
    assert ended == lm.generate("Once", **{**OPTIONS, "max_new_tokens": 3})
    assert isinstance(failed, GPT2NPError)
    assert late[1] == lm.generate("A", **OPTIONS)


@pytest.mark.parametrize("error", [ValueError(), SystemExit()])
def test_callback_that_raises_at_the_last_token_its_reader_gets_the_error(lm, error):
    with pytest.raises((ValueError, GPT2NPError)):
        run(lm.agenerate("The fox", max_new_tokens=3, on_token=raising(error)))


@pytest.mark.parametrize("name", ["new_text", "accept", "interrupt"])
def test_an_error_in_a_sequence_gives_an_error(lm, monkeypatch, name):
    def fail(*args):
        raise ZeroDivisionError(name)

    monkeypatch.setattr(RunningSequence, name, fail)
    if name == "interrupt":
        monkeypatch.setattr(lm.model, "forward", fail)
    with pytest.raises(ZeroDivisionError):
        run(lm.agenerate("The fox", **OPTIONS))
    monkeypatch.undo()
    check_works(lm)


def test_an_error_in_metrics_gives_an_error(lm):
    def on_step(scheduler, updates):
        raise ZeroDivisionError

    async def read_all(engine):
        sequence = lm.stream("The fox", **OPTIONS).sequence
        return [update async for update in engine.run(lm.model, [sequence])]

    engine = AsyncEngine(on_step=on_step)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            run(read_all(engine))


def test_a_thread_that_cannot_be_started_gives_an_error(lm, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        asyncio.run(lm.agenerate("The fox", **OPTIONS))
    monkeypatch.undo()
    check_works(lm)


def test_a_closed_loop_leaves_the_other_readers_alone(lm, monkeypatch):
    async def leave():
        stream = lm.stream("Once", max_new_tokens=400, seed=1, ignore_eos=True)
        pieces = aiter(stream)
        await anext(pieces)
        left.append(pieces)

    monkeypatch.setattr(sys, "unraisablehook", str)  # of the generator that is left
    left, loop = [], asyncio.new_event_loop()
    loop.run_until_complete(leave())
    loop.close()  # without closing the generator
    check_works(lm)
    left.clear()
    gc.collect()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_starts_afresh(lm):
    for _ in range(2):
        run(lm.agenerate("The fox", **OPTIONS))
        pid = os.fork()
        if pid == 0:
            try:
                check_works(lm)
                os._exit(0)
            finally:
                os._exit(1)
        wait_for(pid)


def wait_for(pid):
    """Wait for a child that must end well."""
    end = time.monotonic() + SECONDS
    while (found := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > end:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(found[1]) == 0


def test_a_callback_that_waits_for_its_own_engine_gets_an_error(lm):
    def on_token(token):
        asyncio.run(lm.agenerate("A king", max_new_tokens=2))

    with pytest.raises(InvalidArgumentError, match="a callback cannot wait for a text of the same"):
        run(lm.agenerate("The fox", **OPTIONS, on_token=on_token))
    check_works(lm)


def test_a_stream_that_a_break_has_left_says_so(lm):
    async def read_on():
        stream = lm.stream("Once upon a time", max_new_tokens=400, seed=1, ignore_eos=True)
        pieces = aiter(stream)
        async for _ in pieces:
            break
        with pytest.raises(InvalidArgumentError, match="ends it when the loop ends, also by"):
            next(stream)
        with pytest.raises(InvalidArgumentError, match="ends it when the loop ends, also by"):
            await read(stream)
        await pieces.aclose()
        while stream.running:
            await asyncio.sleep(0.01)
        return stream

    stream = run(read_on())
    assert stream.completion.finish_reason == "cancelled"
    assert list(stream) == []


PROMPTS = ["Once upon a time", "The fox", "A king", "1, 2, 3,"]


def test_calls_at_the_same_time_share_passes_of_sixteen_texts(lm, monkeypatch):
    expected = [lm.generate(prompt, **OPTIONS) for prompt in PROMPTS] * 5
    sizes, forward = [], lm.model.forward

    def record(sequences, *args, **kwargs):
        sizes.append(len(sequences))
        return forward(sequences, *args, **kwargs)

    monkeypatch.setattr(lm.model, "forward", record)

    async def all_at_once():
        return await asyncio.gather(*(lm.agenerate(prompt, **OPTIONS) for prompt in PROMPTS * 5))

    assert asyncio.run(all_at_once()) == expected
    assert max(sizes) == 16


def test_agenerate_takes_all_options(lm):
    arguments = {"max_new_tokens": 10, "seed": 1, "num_return_sequences": 3}
    result = asyncio.run(lm.agenerate("The fox", **arguments))
    assert result == lm.generate("The fox", **arguments)
    with pytest.raises(InvalidArgumentError, match="beam search runs alone; call generate"):
        asyncio.run(lm.agenerate("The fox", num_beams=3))


def test_async_for_yields_the_pieces_and_refuses_a_second_reader(lm):
    async def read_twice():
        stream = lm.stream("The fox", **OPTIONS)
        return await asyncio.gather(read(stream), read(stream), return_exceptions=True)

    first, second = asyncio.run(read_twice())
    assert first == lm.generate("The fox", **OPTIONS).text
    assert isinstance(second, InvalidArgumentError)


def test_threads_that_read_one_stream_get_each_piece_once(lm):
    expected = lm.generate("Once upon a time", max_new_tokens=100, seed=1)
    stream, pieces = lm.stream("Once upon a time", max_new_tokens=100, seed=1), []
    threads = [threading.Thread(target=lambda: pieces.extend(stream)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stream.completion.ids == expected.ids
    assert sorted("".join(pieces)) == sorted(expected.text)


@pytest.mark.parametrize("seed", range(3))
def test_random_orders_of_tasks_that_fail_or_are_cancelled_leave_the_others_their_text(lm, seed):
    check_random_tasks(lm, random.Random(seed), 8, ["plain", "cancel", "fail"])


@pytest.mark.slow  # 3,300 tasks
@pytest.mark.parametrize("seed", range(55))
def test_random_orders_of_tasks_with_any_exception_leave_no_task_waiting(lm, seed):
    check_random_tasks(lm, random.Random(seed), 60, ["cancel", "fail", "exit"])


def check_random_tasks(lm, rng, n, possible):
    """Start tasks at random times; "exit" raises what ends all texts that run."""
    expected = lm.generate("The fox", **OPTIONS)
    exits = [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError]

    async def all_tasks():
        tasks = []
        for kind in kinds:
            error = ValueError() if kind == "fail" else rng.choice(exits)()
            on_token = raising(error, rng.randrange(1, 9)) if kind in ("fail", "exit") else None
            call = lm.agenerate("The fox", **OPTIONS, on_token=on_token)
            tasks.append(asyncio.create_task(call))
            await asyncio.sleep(rng.random() / 50)
            [task.cancel() for task, k in zip(tasks, kinds, strict=False) if k == "cancel"]
        return await asyncio.gather(*tasks, return_exceptions=True)

    kinds = rng.choices(possible, k=n)
    for kind, result in zip(kinds, run(all_tasks()), strict=True):
        failed = isinstance(result, ValueError | asyncio.CancelledError) and kind != "plain"
        ended = isinstance(result, GPT2NPError) and "exit" in kinds
        assert result == expected or failed or ended, (kind, result)
    check_works(lm)


def test_an_error_of_one_continuation_ends_the_others(lm):
    indices = []

    def fail_in_the_second(token):
        indices.append(token.index)
        if token.index == 1:
            raise ZeroDivisionError

    async def numbers_of_tokens():
        options = {"max_new_tokens": 400, "ignore_eos": True, "on_token": fail_in_the_second}
        with pytest.raises(ZeroDivisionError):
            await lm.agenerate("The fox", seed=1, num_return_sequences=2, **options)
        await asyncio.sleep(0.05)  # the step in progress ends
        before = len(indices)
        await asyncio.sleep(0.1)
        return before, len(indices)

    before, after = asyncio.run(numbers_of_tokens())
    assert before == after < 400
