"""The BLAS library: asked for one thread while a model computes, and left as it was."""

import os
import shutil
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gpt2np.kernels import blas as module
from gpt2np.kernels.blas import Blas, blas, single_threaded_blas


@pytest.fixture
def counted(monkeypatch):
    """A library of 5 threads that remembers what it was set to."""
    settings = [5]
    library = Blas(lambda: settings[-1], settings.append, core="Haswell")
    monkeypatch.setattr(module, "blas", lambda: library)
    monkeypatch.setattr(module, "_users", 0)  # a model of another test may not be collected yet
    return settings


@pytest.mark.parametrize("error", [None, RuntimeError])
def test_thread_count_is_restored_after_nested_blocks(counted, error):
    with suppress(RuntimeError), single_threaded_blas():
        assert counted[-1] == 1
        with single_threaded_blas():
            pass
        assert counted[-1] == 1
        if error:
            raise error
    assert counted == [5, 1, 5]


def test_ctrl_c_while_the_thread_count_changes_does_not_count_as_a_block(monkeypatch, counted):
    def interrupted():
        raise KeyboardInterrupt

    library = Blas(interrupted, lambda n: None, core="Haswell")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "blas", lambda: library)
        with single_threaded_blas():
            pass
    with single_threaded_blas():
        pass
    assert counted == [5, 1, 5]


def test_last_of_several_threads_restores_the_thread_count(counted):
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


def test_signal_handler_may_interrupt_the_change_of_the_thread_count(monkeypatch, counted):
    def get_threads():
        with single_threaded_blas():
            return counted[0]

    monkeypatch.setattr(module, "_lock", type(module._lock)())
    library = Blas(get_threads, counted.append, core="Haswell")
    monkeypatch.setattr(module, "blas", lambda: library)
    thread = threading.Thread(target=get_threads, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive() and counted[-1] == 5 and 1 in counted


def test_unknown_library_keeps_its_threads(monkeypatch):
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


def test_openblas_is_found_beside_numpy_on_windows(monkeypatch, tmp_path):
    """There, looking up a name in NumPy's extension doesn't search the DLLs that it needs."""
    found = sorted(Path(np.__file__).parents[1].glob("numpy.libs/*openblas*.so"))
    other = pytest.importorskip("_ctypes_test", reason="needs an extension without BLAS")
    if not found or sys.platform != "linux":
        pytest.skip("needs Linux and the OpenBLAS of NumPy's wheel")
    extension = tmp_path / "numpy" / "_core" / "_multiarray_umath.pyd"
    extension.parent.mkdir(parents=True)
    shutil.copy(other.__file__, extension)
    monkeypatch.setattr(module, "import_module", lambda _: SimpleNamespace(__file__=extension))
    assert module.blas.__wrapped__() is None
    (tmp_path / "numpy.libs").mkdir()
    (tmp_path / "numpy.libs" / "libscipy_openblas64_-0.dll").symlink_to(found[0])
    assert module.blas.__wrapped__() is None
    monkeypatch.setattr(sys, "platform", "win32")
    assert module.blas.__wrapped__().get_threads() > 0


@pytest.mark.skipif(not hasattr(os, "fork") or blas() is None, reason="needs os.fork and OpenBLAS")
def test_a_block_that_a_fork_interrupts_does_not_count_in_the_child():
    block = single_threaded_blas()
    block.__enter__()
    if (pid := os.fork()) == 0:
        block.__exit__(None, None, None)
        with single_threaded_blas():
            os._exit(int(blas().get_threads() != 1))
    block.__exit__(None, None, None)
    assert os.waitpid(pid, 0)[1] == 0
