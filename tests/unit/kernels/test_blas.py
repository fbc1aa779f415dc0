"""The BLAS library: asked for one thread while a model computes, and left as it was."""

import threading

import numpy as np
import pytest

from gpt2np.kernels import blas as module
from gpt2np.kernels.blas import Blas, blas, single_threaded_blas


@pytest.fixture
def counted(monkeypatch):
    """A library of 5 threads that remembers what it was set to."""
    settings = [5]
    library = Blas(lambda: settings[-1], settings.append, small_kernels=False)
    monkeypatch.setattr(module, "blas", lambda: library)
    return settings


def test_the_setting_is_restored(counted):
    with single_threaded_blas():
        assert counted[-1] == 1
        with single_threaded_blas():
            pass
        assert counted[-1] == 1
    assert counted == [5, 1, 5]


def test_the_setting_is_restored_after_an_error(counted):
    with pytest.raises(RuntimeError), single_threaded_blas():
        raise RuntimeError
    assert counted == [5, 1, 5]


def test_the_last_of_several_threads_restores_it(counted):
    inside, leave = threading.Event(), threading.Event()

    def other():
        with single_threaded_blas():
            inside.set()
            leave.wait(120)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(120)
    with single_threaded_blas():
        pass
    assert counted[-1] == 1
    leave.set()
    thread.join(120)
    assert counted == [5, 1, 5]


def test_a_signal_handler_or_finalizer_may_interrupt_the_change(monkeypatch):
    settings = [5]

    def get_threads():
        with single_threaded_blas():
            return settings[0]

    monkeypatch.setattr(module, "_lock", type(module._lock)())
    library = Blas(get_threads, settings.append, small_kernels=False)
    monkeypatch.setattr(module, "blas", lambda: library)
    thread = threading.Thread(target=get_threads, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive() and settings[-1] == 5 and 1 in settings


def test_an_unknown_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(module, "blas", lambda: None)
    module.small_kernels.cache_clear()
    module.python_threads.cache_clear()
    try:
        with single_threaded_blas():
            assert not module.small_kernels() and module.python_threads() == 1
    finally:
        module.small_kernels.cache_clear()
        module.python_threads.cache_clear()


def test_numpy_s_own_openblas_is_found():
    built_with = np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
    if "openblas" not in built_with:
        pytest.skip(f"NumPy is built with {built_with}")
    library = blas()
    before = library.get_threads()
    with single_threaded_blas():
        assert library.get_threads() == 1
    assert library.get_threads() == before
