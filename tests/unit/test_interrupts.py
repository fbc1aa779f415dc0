"""Signals wait until a block has ended."""

import gc
import signal
import threading

import pytest

from gpt2np.interrupts import held_signals, no_garbage_collection


@pytest.fixture(autouse=True)
def sigint_handler():
    """Python's handler, which raises KeyboardInterrupt."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, previous)


@pytest.mark.parametrize("numbers", [{}, {"numbers": [signal.SIGINT]}], ids=["all", "SIGINT"])
def test_a_signal_waits_until_the_block_has_ended(numbers):
    done = False
    with pytest.raises(KeyboardInterrupt), held_signals(**numbers):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done = True
    assert done


def test_a_block_that_may_hang_ends_at_the_second_signal():
    steps = []
    with pytest.raises(KeyboardInterrupt), held_signals(may_hang=True):
        signal.raise_signal(signal.SIGINT)
        steps.append("first")
        signal.raise_signal(signal.SIGINT)
        steps.append("second")
    assert steps == ["first"]


def test_an_error_in_the_block_is_raised():
    with pytest.raises(ValueError, match="wrong"), held_signals():
        raise ValueError("wrong")


def test_only_the_given_signals_wait():
    received = []
    previous = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        with held_signals([signal.SIGINT]):
            signal.raise_signal(signal.SIGTERM)
            assert received == [signal.SIGTERM]
        with held_signals():
            signal.raise_signal(signal.SIGTERM)
            assert received == [signal.SIGTERM]
        assert received == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_other_threads_hold_nothing():
    seen = []

    def run():
        with held_signals():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


@pytest.mark.parametrize("is_enabled", [True, False])
def test_garbage_collection_is_as_before_afterwards(is_enabled):
    before = gc.isenabled()
    try:
        (gc.enable if is_enabled else gc.disable)()
        with pytest.raises(ValueError), no_garbage_collection():
            assert not gc.isenabled()
            raise ValueError
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if before else gc.disable)()
