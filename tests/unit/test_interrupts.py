"""Signals wait until a block has ended."""

import gc
import signal
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module

import pytest

from gpt2np.interrupts import held_signals, interrupt, no_garbage_collection


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


@pytest.fixture
def importing(tmp_path, monkeypatch):
    """importing(code): import a module of `code`, while `interrupt` handles SIGINT."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "interrupted", raising=False)

    def run(code):
        (tmp_path / "interrupted.py").write_text(code)
        signal.signal(signal.SIGINT, interrupt)
        try:
            module = import_module("interrupted")
            time.sleep(0.2)
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return module

    return run


def test_a_signal_in_a_finalizer_of_an_import_waits_for_the_end_of_the_import(importing):
    """Python ignores an exception in a finalizer."""
    code = "class A:\n    def __del__(self):\n        signal.raise_signal(signal.SIGINT)\n"
    with pytest.raises(KeyboardInterrupt):
        importing(f"import signal\n{code}A()\ndone = True")
    assert sys.modules["interrupted"].done


def test_an_import_that_hangs_ends_at_the_second_signal(importing):
    with pytest.raises(KeyboardInterrupt):
        importing("import signal\nfor _ in range(2):\n    signal.raise_signal(signal.SIGINT)")
    assert "interrupted" not in sys.modules
    with suppress(KeyboardInterrupt):  # of the first signal
        time.sleep(0.1)


def test_a_signal_outside_an_import_raises_at_once():
    with pytest.raises(KeyboardInterrupt):
        interrupt(signal.SIGINT, sys._getframe())


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
