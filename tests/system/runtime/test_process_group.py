"""Several processes compute the same bits as one, and leave nothing behind."""

import functools
import gc
import mmap
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest
from helpers.paths import CHECKOUT
from helpers.processes import is_running, wait_until
from helpers.random_models import SHAPES, random_model

from gpt2np import GPT2, InvalidArgumentError
from gpt2np.kernels.blas import small_kernels
from gpt2np.kernels.matmul import SMALL_BATCH
from gpt2np.model import gpt2, last_token_indices
from gpt2np.runtime.context import Context
from gpt2np.runtime.kv_cache import TILE
from gpt2np.runtime.process_group import ProcessGroup
from gpt2np.runtime.ranks import max_processes

PATHS = [str(Path(__file__).parent), str(CHECKOUT / "tests"), str(CHECKOUT)]

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create") or os.uname().machine != "x86_64", reason="needs Linux on x86"
)


def with_processes(model, count, kind="processes", tuner=None):
    """Also more processes than CPUs, or threads."""
    model.processes = 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpt2np.runtime.process_group.has_gil", lambda: kind == "processes")
        model._group = ProcessGroup(model._runner, count, model.weights.max_width, 0, model, tuner)
    return model


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.fixture(
    scope="module",
    params=[
        (2, "GPT-2 small's width", "processes"),
        (3, "small heads", "processes"),
        (2, "small heads", "threads"),
        slow((2, "small heads", "processes")),
        slow((3, "small heads", "threads")),
        slow((2, "GPT-2 XL's width", "processes")),
        slow((3, "GPT-2 small's width", "processes")),  # three spin on two cores
        slow((3, "GPT-2 XL's width", "processes")),
        slow((2, "GPT-2 small's width", "threads")),  # threads, which wait for the GIL
    ],
    ids=lambda case: "-".join(map(str, case)),
)
def case(request):
    """(number of ranks, name of the model's shape, processes or threads)."""
    return request.param


@pytest.fixture(scope="module")
def alone(case):
    shape = SHAPES[case[1]]
    model = random_model(**shape | {"n_layer": 4 if "heads" in case[1] else 1})
    model.forward([[1]])
    return model


@pytest.fixture(scope="module")
def model(case, alone):
    model = random_model(**{key: getattr(alone.config, key) for key in next(iter(SHAPES.values()))})
    model.forward([[1]])
    yield with_processes(model, case[0], case[2])
    model.processes = 1


def small(**changes):
    model = random_model(**{**SHAPES["small heads"], **changes})
    model.forward([[1]])
    return with_processes(model, 2)


def with_embedding(model, token_id, value):
    weight = model.weights["wte.weight"].copy()
    weight[token_id] = value
    return GPT2(model.config, {**model.weights, "wte.weight": weight})


def pids(model):
    workers = model._group._workers if model._group else []
    return [worker.pid for worker, _ in workers if not isinstance(worker, threading.Thread)]


def n_workers(model):
    return len(model._group._workers)


def both(models, sequences, caches, **options):
    """The same step by both."""
    found, expected = [
        model.forward(sequences, some, **options)
        for model, some in zip(models, caches, strict=True)
    ]
    same(found, expected)


def random_session(models, seed=0, steps=60):
    """The same batches of tokens, drafts and prompts by both; caches come, go, are cut, copied."""
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(steps):
        match rng.integers(4):
            case 0 if len(pairs) < 40:
                n_new = rng.choice([1, 3, 20])
                pairs += [tuple(model.new_cache() for model in models) for _ in range(n_new)]
            case 1 if pairs:
                pairs.pop(rng.integers(len(pairs)))
            case 2 if pairs:
                pair = pairs[rng.integers(len(pairs))]
                length = rng.integers(pair[0].length + 1)
                for cache in pair:
                    cache.truncate(length)
            case 3 if pairs:
                pairs.append(tuple(cache.copy() for cache in pairs[rng.integers(len(pairs))]))
        if some := [pair for pair in pairs if rng.random() < 0.6 and pair[0].length < 700]:
            longest = rng.choice([1, 1, 4, 8, 90] if len(some) > 3 else [1, 4, SMALL_BATCH, 300])
            prompts = [rng.integers(0, 1031, rng.integers(1, longest + 1)) for _ in some]
            rows = last_token_indices(prompts)
            rows = rows if rng.random() < 0.7 else rng.integers(0, rows[-1] + 1, rng.integers(60))
            both(models, prompts, list(zip(*some, strict=True)), logits_indices=rows)


def same(found, expected):
    """To the bit, where that is to be had."""
    tolerance = 0 if small_kernels() else 1e-5
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def run_program(program, **variables):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(PATHS), **variables},
    )


class TestSameBits:
    def test_random_session(self, case, model, alone):
        random_session((model, alone), steps=24 if alone.config.n_embd < 100 else 12)
        assert n_workers(model) == case[0] - 1

    @pytest.mark.parametrize("options", [{"dtype": np.float64}, {"weight_dtype": "int8"}])
    def test_random_session_float64_and_8_bit_weights(self, options):
        models = [random_model(**SHAPES["small heads"], **options) for _ in range(2)]
        random_session((with_processes(models[0], 2), models[1]), steps=20)
        assert n_workers(models[0]) == 1

    @pytest.mark.parametrize("n", [SMALL_BATCH, SMALL_BATCH + 1, 513, 600])
    def test_prompts(self, model, alone, case, n):
        """Each process has some of the tokens; also of one that goes on."""
        rng = np.random.default_rng(n)
        caches = [[model.new_cache()], [alone.new_cache()]]
        asked = [n - 1, 0, n - 1, *rng.integers(0, n, 50)]
        both((model, alone), [rng.integers(0, 1031, n)], caches, logits_indices=asked)
        for more, rows in ((1, [0] * 70), (99, []), (1, [0])):
            both((model, alone), [rng.integers(0, 1031, more)], caches, logits_indices=rows)
        assert model.processes == case[0]

    def test_more_processes_than_there_is_for_them_to_do(self):
        models = with_processes(small(), 7), random_model(**SHAPES["small heads"])
        ids = np.random.default_rng(0).integers(0, 1031, SMALL_BATCH + 1)
        for rows in ([], [64], [5, 0, 5, 33]):
            both(models, [ids], [[model.new_cache()] for model in models], logits_indices=rows)
        assert len(pids(models[0])) == 6

    def test_what_is_not_finite_stays_where_it_is(self, monkeypatch):
        """In a later pass of a prompt, whose tokens are in a tile with those of the pass before."""
        shape = {"n_embd": 640, "n_head": 10, "n_inner": 100, "n_layer": 1}
        models = [with_embedding(random_model(**shape), 7, np.inf) for _ in range(2)]
        models[0] = with_processes(models[0], 2)
        first, causal_softmax = os.getpid(), gpt2.causal_softmax

        def late(*arguments):
            if os.getpid() == first:
                time.sleep(0.02)
            return causal_softmax(*arguments)

        monkeypatch.setattr(gpt2, "causal_softmax", late)
        ids = np.random.default_rng(0).integers(8, 1031, 700)
        start = 513 // TILE * TILE + 50  # within the tile where the second pass begins, at 513
        ids[start : start + 9] = 7
        caches = [[model.new_cache()] for model in models]
        with np.errstate(all="ignore"):
            both(models, [ids[:1]], caches)
            both(models, [ids[1:]], caches, logits_indices=range(450, 512))
        assert pids(models[0])


class TestWhenTheyCompute:
    def test_passes_with_many_logits_or_a_hook_use_one_process(self):
        model = with_processes(random_model(**SHAPES["small heads"]), 2)
        model.forward([range(SMALL_BATCH + 1)])
        model.forward([[1]], hook=lambda _, array: array)
        assert pids(model) == []
        model.forward([[1]])
        assert len(pids(model)) == 1

    def test_first_pass_whose_ids_exceed_a_pipe_uses_all_processes(self):
        ids = np.random.default_rng(0).integers(100, 1031, (48, 250))
        models = [random_model(**SHAPES["small heads"] | {"n_layer": 1}) for _ in range(2)]
        with_processes(models[0], 2)
        found, expected = (m.forward(ids, logits_indices=last_token_indices(ids)) for m in models)
        same(found, expected)
        assert n_workers(models[0]) == 1

    def test_a_cache_from_before_is_for_one_process(self):
        model = small()
        model.processes = 1
        cache = model.new_cache()
        found = [*model.forward([[5, 6]], [cache])]
        with_processes(model, 2)
        found += [*model.forward([[7]], [cache])]
        assert pids(model) == []
        model.forward([[7]])
        assert len(pids(model)) == 1
        np.testing.assert_allclose(found, model.forward([[5, 6, 7]]), atol=1e-5)

    def test_how_many(self):
        model = random_model(**SHAPES["small heads"])
        assert model.processes == 1
        model.processes = 1000
        assert model.processes == max_processes() == 64
        model.processes = 3  # also more than there are CPUs
        assert model.processes == 3
        for wrong in (0, -1, "many"):
            with pytest.raises(InvalidArgumentError, match=f"processes is {wrong!r}; it must be"):
                model.processes = wrong
        assert model.processes == 3


class Script:
    """Chooses numbers of ranks from a list, instead of by measurement."""

    def __init__(self, *numbers):
        self.numbers, self.recorded = iter(numbers), []

    def choice(self, n_rows):
        return self

    @property
    def next_ranks(self):
        self.last = next(self.numbers)
        return self.last

    def record(self, n_rows, seconds):
        self.recorded.append((n_rows, self.last))


class TestVaryingRanks:
    def scripted(self, *numbers):
        model = small()
        model.processes = 1
        tuner = Script(*numbers)
        return with_processes(model, 4, tuner=tuner), tuner

    def test_random_session(self):
        """Ranks that sat out passes go on."""
        (model, _) = self.scripted(*[1, 2, 4, 1, 3, 4, 2, 1, 4, 3, 2, 2, 1, 4] * 9)
        other = random_model(**SHAPES["small heads"])
        other.forward([[1]])
        random_session((model, other), steps=18)

    def test_workers_are_forked_when_a_pass_needs_them(self):
        model, tuner = self.scripted(1, 2, 1, 2, 4, 3, 4)
        counts = []
        for _ in range(7):
            model.forward([[5]])
            counts.append(len(pids(model)))
        assert counts == [0, 1, 1, 1, 3, 3, 3]
        # The pass that forks is not timed.
        assert tuner.recorded == [(1, 1), (1, 1), (1, 2), (1, 3), (1, 4)]

    def test_a_rank_that_sits_out_is_killed(self):
        model, _ = self.scripted(3, 2, 2, 3, 1)
        expected = model.forward([[5]])
        os.kill(pids(model)[1], signal.SIGKILL)
        for _ in range(2):
            same(model.forward([[5]]), expected)
        with pytest.warns(UserWarning, match="another rank has ended"):
            same(model.forward([[5]]), expected)
        assert (model.processes, pids(model)) == (1, [])

    def test_without_small_kernels_bits_do_not_depend_on_the_choice(self, monkeypatch):
        """Of more tokens, a rank's columns can differ from those of the whole product."""
        monkeypatch.setattr("gpt2np.kernels.matmul.small_kernels", lambda: False)
        model, tuner = self.scripted(2, 2)
        for n in (6, 7, 100, 6):
            model.forward([range(n), [5]], logits_indices=[0])
        assert tuner.recorded == [(7, 2)]  # the first pass has forked


class TestAuto:
    def test_a_long_run_tries_more(self, monkeypatch):
        monkeypatch.setattr("gpt2np.model.model.thread_count", lambda: 2)
        model, other = small(), small()
        model.processes = other.processes = 1
        model.processes = "auto"
        caches = [[model.new_cache()], [other.new_cache()]]
        end = time.monotonic() + 60
        while not pids(model):
            both((model, other), [[5]], caches)
            assert time.monotonic() < end
            if caches[0][0].length == 900:
                for (cache,) in caches:
                    cache.truncate(7)
        assert len(pids(model)) == 1
        model.processes = 1
        assert pids(model) == []


def kill_worker(model, monkeypatch):
    os.kill(pids(model)[0], signal.SIGKILL)


def stop_worker(model, monkeypatch):
    monkeypatch.setattr("gpt2np.runtime.ranks._TIMEOUT_S", 0.2)
    os.kill(pids(model)[0], signal.SIGSTOP)


def fail_in_worker(model, monkeypatch):
    first, by_rows = (os.getpid(), threading.current_thread()), Context.by_rows

    def failing(*arguments):
        if (os.getpid(), threading.current_thread()) != first:
            raise MemoryError("4 GB")
        return by_rows(*arguments)

    monkeypatch.setattr(Context, "by_rows", staticmethod(failing))
    model._group.stop()  # the next pass starts another, with the changed function


def fail_to_fork(model, monkeypatch):
    def fork():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    model._group.stop()


class TestFailures:
    @pytest.mark.parametrize(
        ("kind", "fail", "warning"),
        [
            ("processes", kill_worker, "another rank has ended$"),
            ("processes", stop_worker, r"another rank has not answered for 0\.2 s$"),
            ("processes", fail_in_worker, "another rank has ended: MemoryError: 4 GB$"),
            ("processes", fail_to_fork, "cannot start another rank: .* temporarily unavailable$"),
            ("threads", fail_in_worker, "another rank has ended: MemoryError: 4 GB$"),
        ],
    )
    def test_failed_rank_is_a_warning_and_one_process_goes_on(
        self, kind, fail, warning, monkeypatch
    ):
        model = with_processes(small(), 2, kind)
        cache = model.new_cache()
        expected = [model.forward([[i]], [cache])[0] for i in (5, 6, 7)]
        cache.truncate(1)
        fail(model, monkeypatch)
        with pytest.warns(UserWarning, match=f"continues on one process: {warning}"):
            same(model.forward([[6]], [cache])[0], expected[1])
        cache.truncate(1)
        assert not cache.store.values[:, cache.slot, :, :, 1:].any()
        same(model.forward([[6]], [cache])[0], expected[1])
        same(model.forward([[7]], [cache])[0], expected[2])
        assert (model.processes, n_workers(model)) == (1, 0)

    def test_system_without_shared_memory_uses_one_process(self, monkeypatch):
        class Memory(mmap.mmap):
            def madvise(self, *_):
                raise OSError(22, "Invalid argument")

        monkeypatch.setattr(mmap, "mmap", Memory)
        model = random_model(**SHAPES["small heads"])
        model.processes = 2
        assert model.processes == 1

    @pytest.mark.parametrize(
        ("program", "expected"),
        [
            (  # a fork would never return
                """
                from gpt2np.runtime import process_group
                process_group._BLAS_TIMEOUT_S = 0.03
                matrix, model = np.ones((2000, 2000)), random_model(**SHAPES["small heads"])
                thread = threading.Thread(target=lambda: matrix @ matrix)
                thread.start()
                time.sleep(0.02)
                with_processes(model, 2).forward([[5]])
                print(model.processes if thread.is_alive() else 1)
                thread.join()
                """,
                "1\n",
            ),
            (  # the first pass waits until BLAS's threads sleep, so it always runs on all ranks
                """
                for _ in range(2):
                    model = random_model(**SHAPES["small heads"])
                    matrix = np.ones((900, 900)) @ np.ones((900, 900))
                    with_processes(model, 2).forward([[5]])
                    print(len(pids(model)))
                """,
                "1\n" * 2,
            ),
        ],
        ids=["in another thread", "just before"],
    )
    def test_no_worker_is_forked_during_a_multithreaded_product(self, program, expected):
        names = "np, pids, random_model, SHAPES, threading, time, with_processes"
        program = f"from test_process_group import {names}\n{textwrap.dedent(program)}"
        done = run_program(program, OPENBLAS_NUM_THREADS="4")
        assert (done.returncode, done.stdout) == (0, expected), done.stderr

    @pytest.mark.parametrize("ids", [[6], range(100)], ids=["a token", "a prompt"])
    @pytest.mark.parametrize(
        ("kind", "error"), [("processes", KeyboardInterrupt), ("threads", MemoryError)]
    )
    def test_error_in_rank_0_is_raised_and_the_next_pass_uses_new_workers(
        self, kind, error, ids, monkeypatch
    ):
        model = with_processes(small(), 2, kind)
        cache = model.new_cache()
        expected = [model.forward([[i]], [cache])[0] for i in (5, 6, 7)]
        cache.truncate(1)
        before = pids(model)
        first, by_rows, calls = threading.current_thread(), Context.by_rows, []

        def failing(*arguments):
            calls.append(threading.current_thread())
            if calls.count(first) == 4 and calls[-1] is first:
                raise error
            return by_rows(*arguments)

        with monkeypatch.context() as context, pytest.raises(error):
            context.setattr(Context, "by_rows", staticmethod(failing))
            model.forward([ids], [cache], logits_indices=[0])
        assert n_workers(model) == 0 and not any(map(is_running, before))
        found = [model.forward([[i]], [cache])[0] for i in (6, 7)]
        same(found, expected[1:])
        assert (model.processes, n_workers(model)) == (2, 1)

    def test_second_ctrl_c_does_not_interrupt_the_stop_of_the_workers(self, monkeypatch):
        model = small()
        expected, before, stop = model.forward([[5]]), pids(model), ProcessGroup.stop
        press = functools.partial(signal.raise_signal, signal.SIGINT)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Context, "by_rows", staticmethod(lambda *_: press()))
            patch.setattr(ProcessGroup, "stop", lambda group: (press(), stop(group)))
            model.forward([[6]])
        assert pids(model) == [] and not any(map(is_running, before))
        np.testing.assert_array_equal(model.forward([[5]]), expected)

    def test_floating_point_errors_are_the_first_one_s(self):
        model = with_processes(with_embedding(small(), 7, 3e38), 2)
        ids = [1] * 33 + [7] * 33  # the other one's are those that overflow
        with np.errstate(all="raise"):
            model.forward([ids], logits_indices=[0])
            model.forward([ids], logits_indices=[0])
        assert (model.processes, len(pids(model))) == (2, 1)

    def test_the_user_forks(self):
        """The fork computes alone, and has its own copies of the caches."""
        model = small()
        cache = model.new_cache()
        expected = [model.forward([[i]], [cache])[0] for i in (5, 6, 7, 8)]
        cache.truncate(2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            try:
                signal.alarm(20)
                model.forward([[9]], [cache])
                cache.truncate(2)
                found = [model.forward([[i]], [cache])[0] for i in (7, 8)]
                os._exit(0 if np.array_equal(found, expected[2:]) and model.processes == 1 else 1)
            finally:
                os._exit(2)
        found = [model.forward([[7]], [cache])[0]]
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        found.append(model.forward([[8]], [cache])[0])
        np.testing.assert_array_equal(found, expected[2:])
        assert is_running(*pids(model))

    def test_many_caches_are_let_go_of_within_a_pass(self, monkeypatch):
        """As by the garbage collector, which comes when it likes."""
        model = small()
        caches = [model.new_cache() for _ in range(60)]
        for cache in caches:
            model.forward([[5]], [cache])
        expected = model.forward([[5]])
        by_rows = Context.by_rows

        def losing(*arguments):
            caches.clear()
            return by_rows(*arguments)

        monkeypatch.setattr(Context, "by_rows", staticmethod(losing))
        np.testing.assert_array_equal(model.forward([[5]]), expected)
        assert model.processes == 2


class TestWhatIsLeft:
    def test_no_process_of_a_model_that_is_gone_or_has_one_process(self):
        """Though a cache of it is left."""
        model, other = small(), small()
        cache = model.new_cache()
        model.forward([[5]], [cache])
        other.forward([[5]])
        ended = pids(model) + pids(other)
        assert len(ended) == 2 and all(map(is_running, ended))
        del model
        other.processes = 1
        gc.collect()
        assert not any(Path(f"/proc/{pid}").exists() for pid in ended)
        assert cache.copy().length == 1

    def test_no_memory_of_caches_that_are_gone(self):
        model = small(n_embd=240, n_layer=2)

        def shared():
            rollup = Path(f"/proc/{pids(model)[0]}/smaps_rollup").read_text()
            return int(rollup.split("Pss_Shmem:")[1].split()[0])

        prompts = [[1] * 120] * 16
        caches = [model.new_cache() for _ in prompts]
        model.forward(prompts, caches)
        model.forward([[5]] * 16, caches)
        more = [model.new_cache() for _ in prompts]
        model.forward(prompts, more)
        model.forward([[5]] * 16, more)
        before = shared()
        del caches, more
        gc.collect()
        assert before > 5_000  # kB; 2 × 16 × 128 tokens × 2 blocks × 2 × 240 numbers are 15,000
        wait_until(lambda: shared() < before / 10)

    def test_no_caches_that_are_gone_in_threads(self):
        model = with_processes(small(), 2, "threads")
        caches = [model.new_cache() for _ in range(3)]
        for cache in caches:
            model.forward([[1, 2, 3]], [cache])
        stores = [weakref.ref(cache.store) for cache in caches]
        del caches, cache
        gc.collect()
        assert [store() for store in stores[:2]] == [None, None]  # the last pass has the third

    @pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), signal.SIGKILL)"])
    def test_nothing_of_a_process_that_ends(self, end):
        """Who reads what it prints sees the end of that, too."""
        program = f"""
            import os, signal
            from test_process_group import pids, small
            model = small()
            model.forward([[5]])
            print(*pids(model), flush=True)
            {end}
        """
        done = run_program(program)
        assert done.returncode == (-signal.SIGKILL if end else 0), done.stderr
        assert not done.stderr
        wait_until(lambda: not is_running(int(done.stdout)))

    def test_ctrl_c_reaches_only_the_first(self):
        """In a terminal all processes of a group get it."""
        model = small()
        expected = model.forward([[5]])
        os.kill(pids(model)[0], signal.SIGINT)
        np.testing.assert_array_equal(model.forward([[5]]), expected)
        assert model.processes == 2


class TestThreads:
    """Ranks that are threads, as in Python without a GIL."""

    def test_they_are_chosen_where_there_is_no_gil_and_end_with_the_model(self, monkeypatch):
        model = random_model(**SHAPES["small heads"])
        monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
        monkeypatch.setattr(sys, "platform", "win32")
        assert max_processes() == 64
        model.processes = 2
        expected = random_model(**SHAPES["small heads"]).forward([[5, 6]])
        same(model.forward([[5, 6]]), expected)
        assert (model.processes, pids(model), n_workers(model)) == (2, [], 1)
        workers = [thread for thread, _ in model._group._workers]
        del model
        gc.collect()
        assert not any(thread.is_alive() for thread in workers)
