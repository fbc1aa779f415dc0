"""Work that threads share: every piece once, errors told, nothing left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest

from gpt2np.kernels import threads
from gpt2np.kernels.threads import parallel_for

PATIENCE = 120  # seconds, after which a thread that is waited for will not come


@pytest.fixture
def three_threads(monkeypatch):
    monkeypatch.setattr(threads, "thread_count", lambda: 3)
    threads._worker_queue.cache_clear()
    # A shell ignores Ctrl-C in programs that run in the background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
    threads._worker_queue.cache_clear()


@pytest.mark.usefixtures("three_threads")
class TestInParallel:
    @pytest.mark.parametrize("count", [0, 1, 2, 3, 50])
    def test_every_piece_once(self, count):
        done = []
        parallel_for(done.append, range(count), 3)
        assert sorted(done) == list(range(count))

    @pytest.mark.parametrize("of_caller", [True, False])
    def test_an_error_is_raised_when_all_threads_have_ended(self, of_caller):
        main, meeting, done = threading.get_ident(), threading.Barrier(3, timeout=PATIENCE), []

        def work(piece):
            if piece < 3:
                meeting.wait()
            if piece < 3 and (threading.get_ident() == main) is of_caller:
                raise RuntimeError(f"piece {piece}")
            time.sleep(0.05)
            done.append(piece)

        with pytest.raises(RuntimeError, match=r"piece [012]"):
            parallel_for(work, range(4), 3)
        before = sorted(done)
        time.sleep(0.2)
        assert sorted(done) == before and len(before) >= 1
        parallel_for(done.append, [9, 9], 3)  # and it goes on working

    def test_no_more_threads_than_are_asked_for(self):
        for most in (1, 2):
            seen, meeting = set(), threading.Barrier(most, timeout=PATIENCE)

            def work(piece, most=most, seen=seen, meeting=meeting):
                seen.add(threading.get_ident())
                if piece < most:
                    meeting.wait()  # so many do come
                time.sleep(0.005)

            parallel_for(work, range(12), most)
            assert len(seen) == most

    def test_within_a_piece_there_is_one_thread(self):
        pairs = []

        def outer(_):
            within = []
            parallel_for(lambda _: within.append(threading.get_ident()), range(4), 3)
            pairs.append((threading.get_ident(), set(within)))

        parallel_for(outer, range(6), 3)
        assert len(pairs) == 6 and all(within == {mine} for mine, within in pairs)

    def test_ctrl_c_waits_for_what_runs_and_leaves_the_rest(self):
        main, begun, ended = threading.get_ident(), [], []

        def work(piece):
            begun.append(piece)
            if threading.get_ident() == main and len(begun) > 1:
                signal.raise_signal(signal.SIGINT)
            time.sleep(0.05)
            ended.append(piece)

        with pytest.raises(KeyboardInterrupt):
            for _ in range(20):  # until the signal comes where it waits, too
                begun.clear()
                parallel_for(work, range(50), 3)
        assert len(begun) < 10
        before = list(ended)
        time.sleep(0.2)
        assert ended == before
        begun.clear()
        parallel_for(begun.append, range(9), 3)
        assert sorted(begun) == list(range(9))

    def test_ctrl_c_while_waiting_for_a_helper(self):
        main, ended, helped = threading.get_ident(), [], threading.Event()

        def work(piece):
            if threading.get_ident() != main:
                helped.set()
                time.sleep(0.2)
                signal.pthread_kill(main, signal.SIGINT)
                time.sleep(0.2)
                ended.append(piece)
            else:
                assert helped.wait(PATIENCE)  # and then it waits for the helper's end

        with pytest.raises(KeyboardInterrupt):
            parallel_for(work, range(2), 2)
        assert len(ended) == 1

    def test_helpers_heed_the_caller_s_errstate(self):
        big = np.full(2000, 3e38, np.float32)
        with warnings.catch_warnings(), np.errstate(over="ignore"):
            warnings.simplefilter("error")
            parallel_for(lambda _: big * big, range(9), 3)


def test_a_limit_of_threads(monkeypatch):
    """If no thread can be started, the caller does all of the work, and later tries again."""

    def start(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "thread_count", lambda: 3)
    threads._worker_queue.cache_clear()
    with monkeypatch.context() as limit:
        limit.setattr(threading.Thread, "start", start)
        done = []
        parallel_for(done.append, range(5), 3)
        assert done == [0, 1, 2, 3, 4]
    meeting = threading.Barrier(3, timeout=PATIENCE)
    parallel_for(lambda _: meeting.wait(), range(3), 3)
    threads._worker_queue.cache_clear()


@pytest.mark.parametrize(("value", "count"), [("3", 3), ("4,2", 4), (" 2 , 1", 2), ("many", 8)])
def test_openmp_s_thread_count_may_be_a_list(monkeypatch, value, count):
    for variable in threads.THREAD_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    monkeypatch.setattr(threads, "usable_cpus", lambda: 8)
    assert threads.thread_count() == count


PROGRAM = """
import os, sys, threading
import numpy as np
from gpt2np import GPT2
model = GPT2.from_folder(sys.argv[1])
ids = list(range(200))
before = model.forward([ids])
if sys.argv[2] == "fork":
    child = os.fork()
    same = np.array_equal(model.forward([ids]), before)
    if child == 0:
        os._exit(0 if same else 3)
    _, status = os.waitpid(child, 0)
    assert same and os.waitstatus_to_exitcode(status) == 0
if sys.argv[2] == "busy":  # the process ends while another thread is computing
    threading.Thread(target=lambda: [model.forward([ids]) for _ in range(99)], daemon=True).start()
print("end", flush=True)
"""


@pytest.mark.parametrize("how", ["plain", "fork", "busy"])
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_computed_ends_at_once(bundled, how):
    child = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(bundled), how],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "3"},
    )
    assert (child.returncode, child.stdout) == (0, "end\n"), child.stderr


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_usable_cpus_are_those_of_the_affinity():
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from gpt2np.kernels.threads import usable_cpus; print(usable_cpus())"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "1\n"
