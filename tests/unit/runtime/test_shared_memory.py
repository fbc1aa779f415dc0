"""Arrays that come and go in one range of addresses."""

import os

import numpy as np
import pytest

from gpt2np.runtime.process_group import SharedMemory

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")


@pytest.fixture
def memory():
    return SharedMemory(max_kept=1 << 22, size=1 << 24)


def test_arrays_are_zeros_and_apart_after_random_frees(memory):
    rng = np.random.default_rng(0)
    kept = {}
    for number in range(1, 400):
        if kept and rng.random() < 0.5:
            del kept[rng.choice(list(kept))]
        size = int(rng.choice([1, 5000, 300_000, 700_000]))
        found = memory.zeros((2, size), np.float32)
        if found is not None:
            assert not found[0].any()
            kept[number] = found[0]
            kept[number][...] = number
        for value, array in kept.items():
            assert (array == value).all()
    assert len(kept) > 2


def test_freed_range_is_allocated_again(memory):
    for _ in range(3):
        assert memory.zeros((1 << 24,), np.uint8) is not None
        blocks = [memory.zeros((1 << 20,), np.uint8) for _ in range(12)]
        assert memory.zeros((1 << 23,), np.uint8) is None
        del blocks[::2], blocks


def test_view_keeps_its_array_allocated(memory):
    view = memory.zeros((4, 100), np.float32)[0][1:].reshape(-1)
    view[...] = 7
    assert not memory.zeros((4, 100), np.float32)[0].any()
    assert (view == 7).all()


def test_fork_shares_the_array(memory):
    array, start = memory.zeros((3,), np.int64)
    pid = os.fork()
    if not pid:
        memory.view(start, None, (3,), np.int64)[1] = 5
        del array  # nothing happens to it there
        os._exit(0)
    os.waitpid(pid, 0)
    assert array.tolist() == [0, 5, 0]
