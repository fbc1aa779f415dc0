"""Arrays that come and go in one range of addresses."""

import os

import numpy as np
import pytest

from gpt2np.runtime.worker_process import SharedMemory

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")


@pytest.fixture
def memory():
    return SharedMemory(1 << 24, max_kept=1 << 22)


def test_arrays_are_zeros_and_apart_whatever_came_before(memory):
    rng = np.random.default_rng(0)
    held = {}
    for number in range(1, 400):
        if held and rng.random() < 0.5:
            del held[rng.choice(list(held))]
        size = int(rng.choice([1, 5000, 300_000, 700_000]))
        found = memory.zeros((2, size), np.float32)
        if found is not None:
            assert not found[0].any()
            held[number] = found[0]
            held[number][...] = number
        for value, array in held.items():
            assert (array == value).all()
    assert len(held) > 2


def test_all_of_it_can_be_had_again(memory):
    for _ in range(3):
        assert memory.zeros((1 << 24,), np.uint8) is not None
        some = [memory.zeros((1 << 20,), np.uint8) for _ in range(12)]
        assert memory.zeros((1 << 23,), np.uint8) is None
        del some[::2], some


def test_a_view_keeps_it(memory):
    view = memory.zeros((4, 100), np.float32)[0][1:].reshape(-1)
    view[...] = 7
    assert not memory.zeros((4, 100), np.float32)[0].any()
    assert (view == 7).all()


def test_a_fork_sees_it(memory):
    array, start = memory.zeros((3,), np.int64)
    pid = os.fork()
    if not pid:
        memory.array_at(start, (3,), np.int64)[1] = 5
        del array  # nothing happens to it there
        os._exit(0)
    os.waitpid(pid, 0)
    assert array.tolist() == [0, 5, 0]
