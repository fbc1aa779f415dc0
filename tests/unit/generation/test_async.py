"""Streams and calls under asyncio, and streams that several threads read."""

import asyncio
import threading

import pytest

from gpt2np import InvalidArgumentError

PROMPTS = ["Once upon a time", "The fox", "A king", "1, 2, 3,"]
OPTIONS = {"max_new_tokens": 30, "seed": 3}


async def read(stream):
    return [piece async for piece in stream]


def test_calls_at_the_same_time_share_passes(lm, monkeypatch):
    expected = [lm.generate(prompt, **OPTIONS) for prompt in PROMPTS]
    sizes, forward = [], lm.model.forward

    def record(sequences, *args, **kwargs):
        sizes.append(len(sequences))
        return forward(sequences, *args, **kwargs)

    monkeypatch.setattr(lm.model, "forward", record)

    async def all_at_once():
        return await asyncio.gather(*(lm.agenerate(prompt, **OPTIONS) for prompt in PROMPTS))

    assert asyncio.run(all_at_once()) == expected
    assert max(sizes) == len(PROMPTS)


def test_agenerate_takes_all_options(lm):
    arguments = {"max_new_tokens": 10, "seed": 1, "num_return_sequences": 3}
    result = asyncio.run(lm.agenerate("The fox", **arguments))
    assert result == lm.generate("The fox", **arguments)
    with pytest.raises(InvalidArgumentError, match="beam search runs alone; call generate"):
        asyncio.run(lm.agenerate("The fox", num_beams=3))


def test_a_cancelled_task_ends_its_generation_only(lm):
    async def cancel_one():
        long = lm.stream("Once upon a time", max_new_tokens=400, seed=1, ignore_eos=True)
        other = asyncio.create_task(read(lm.stream("The fox", **OPTIONS)))
        task = asyncio.create_task(read(long))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        pieces = await other
        while long.running:
            await asyncio.sleep(0.01)
        return long, pieces

    long, pieces = asyncio.run(asyncio.wait_for(cancel_one(), 60))
    assert long.completion.finish_reason == "cancelled"
    assert "".join(pieces) == lm.generate("The fox", **OPTIONS).text


def test_an_error_reaches_the_task_whose_stream_failed(lm):
    def fail(ids, logits):
        raise ZeroDivisionError("on purpose")

    async def run_both():
        tasks = [
            lm.agenerate("The fox", **OPTIONS, logits_processor=fail),
            lm.agenerate("A king", **OPTIONS),
        ]
        return await asyncio.gather(*tasks, return_exceptions=True)

    failed, fine = asyncio.run(run_both())
    assert isinstance(failed, ZeroDivisionError)
    assert fine == lm.generate("A king", **OPTIONS)


def test_async_for_yields_the_pieces_and_refuses_a_second_reader(lm):
    async def read_twice():
        stream = lm.stream("The fox", **OPTIONS)
        return await asyncio.gather(read(stream), read(stream), return_exceptions=True)

    first, second = asyncio.run(read_twice())
    assert len(first) > 3 and "".join(first) == lm.generate("The fox", **OPTIONS).text
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
        await asyncio.sleep(0.1)  # the step in progress ends
        before = len(indices)
        await asyncio.sleep(0.3)
        return before, len(indices)

    before, after = asyncio.run(numbers_of_tokens())
    assert before == after < 400
