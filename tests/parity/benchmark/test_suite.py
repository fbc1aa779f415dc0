"""The benchmark suite on a tiny model: repetitions, timings, limits, report."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.references import save_reference
from tokenizers.pre_tokenizers import ByteLevel

from gpt2np.benchmark import machine, process, timing
from gpt2np.benchmark.counts import prefill_flops
from gpt2np.benchmark.suite import plan_for, run_suite, suite_text
from gpt2np.benchmark.timing import Effort, Timing, alternate, repeat
from gpt2np.errors import GPT2NPError
from gpt2np.hub import ModelSource
from gpt2np.model import GPT2

ONCE = Effort(1, 0.0)


class TestTiming:
    def test_median_and_ends(self):
        timed = Timing((3.0, 1.0, 2.0, 10.0))
        assert (timed.median, timed.fastest, timed.slowest) == (2.5, 1.0, 10.0)

    def test_repeats_at_least_so_often_and_so_long(self):
        assert len(repeat(lambda: None, Effort(5, 0.0)).runs) == 5
        timing = repeat(lambda: None, Effort(2, 0.05))
        assert len(timing.runs) > 2 and sum(timing.runs) <= 0.05

    def test_takes_turns_and_leaves_the_first_of_each_out(self):
        calls = []
        works = [lambda name=name: calls.append(name) for name in "ab"]
        timings = alternate(works, 2, Effort(2, 0.0))
        assert "".join(calls) == "aaabbbaaabbb"
        assert [len(timing.runs) for timing in timings] == [4, 4]

    @pytest.mark.parametrize(("exact", "runs"), [(False, 0), (True, 1)])
    def test_waits_only_for_a_number_of_processes_that_can_change(self, monkeypatch, exact, runs):
        choice = SimpleNamespace(min_rows=5, max_rows=16, is_settled=True)
        model, calls = SimpleNamespace(processes="auto", rank_choices=[choice]), []
        monkeypatch.setattr(timing, "splits_exactly", lambda rows: exact and rows == 8)
        timing.settle(model, 8, lambda: calls.append(1))
        assert len(calls) == runs


class TestPlan:
    def test_of_gpt2s_context(self):
        plan = plan_for(1024)
        assert plan.prompt_lengths == [64, 512, 1000] and plan.context_lengths == [64, 512, 900]
        assert plan.draft_tokens == 8 and plan.decode_effort.runs >= 20 and plan.rounds == 3

    @pytest.mark.parametrize("context", [1, 2, 7, 48, 64, 100, 512, 1024, 4096])
    @pytest.mark.parametrize("quick", [False, True])
    def test_fits_into_every_context(self, context, quick):
        plan = plan_for(context, quick)
        assert min(plan.prompt_lengths) > 0 and max(plan.prompt_lengths) <= context
        assert min(plan.context_lengths) >= 0 and max(plan.context_lengths) < context
        assert 0 < plan.draft_tokens <= context


@pytest.fixture(scope="module")
def source(tiny):
    return ModelSource("tiny", tiny[0])


def run_tiny(source, processes=1):
    efforts = ("limit_effort", "prefill_effort", "decode_effort", "turn_effort")
    n_positions = GPT2.from_folder(source.path).config.n_positions
    plan = replace(plan_for(n_positions, quick=True), **dict.fromkeys(efforts, ONCE))
    progress = []
    results = run_suite(source, "float64", None, 1, processes, plan, progress.append)
    assert len(progress) == plan.n_measurements and progress[1].startswith("prefill of ")
    return results


@pytest.fixture(scope="module")
def measured(source):
    """The results of one process, and the last arguments of the processes that it starts."""
    arguments, run = [], process.subprocess.run

    def recorded(command, **options):
        arguments.append(command[-1])
        return run(command, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process.subprocess, "run", recorded)
        return run_tiny(source, processes=1), arguments


@pytest.fixture(scope="module")
def results(measured):
    return measured[0]


def test_a_model_without_a_vocabulary(results):
    assert results["start"] is None and results["text"] is None
    assert "the model has no vocabulary" in suite_text(results)
    assert results["dtype"] == "float64"
    # 3 blocks of 12 × 24² weights and an LM head of 211 × 24, 8 bytes each
    assert results["weight_bytes_per_token"] == 8 * (3 * 12 * 24**2 + 211 * 24)
    assert results["memory"]["kv_cache"] == 2 * 3 * 48 * 24 * 8
    json.dumps(results)


@pytest.mark.parametrize("n_positions", [2, 40])
def test_a_vocabulary_of_bytes_and_a_short_context(tmp_path, n_positions):
    """The 66 ids of the text that the benchmark continues would not fit."""
    shape = {"n_embd": 24, "n_head": 2, "n_layer": 1, "vocab_size": 257}
    save_reference(tmp_path, n_positions=n_positions, **shape)
    letters = [*sorted(ByteLevel.alphabet()), "<|endoftext|>"]
    vocab = {letter: number for number, letter in enumerate(letters)}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    content = run_tiny(ModelSource("bytes", tmp_path))
    assert content["start"]["seconds"] > 0
    assert (content["text"] or {}).get("tokens") == (8 if n_positions == 40 else None)
    assert "to the first token" in suite_text(content)


def test_the_number_of_processes_is_that_of_all_measurements(measured):
    results, arguments = measured
    assert results["processes"] == 1 and arguments == ["1"]


def test_what_the_limits_mean(tiny, results):
    limits = results["limits"]
    for speed in results["decode"]:
        expected = limits["bytes_per_second"] / results["weight_bytes_per_token"]
        assert speed["limit"] == pytest.approx(expected)
    # A prefill that takes as long as its matmuls reaches 100 %.
    [speed] = results["prefill"]
    seconds = prefill_flops(GPT2.from_folder(tiny[0]).config, 48) / limits["flops_per_second"]
    assert speed["of_limit"] == pytest.approx(seconds / speed["seconds"])


def test_steps_leave_the_caches_as_they_were(tiny):
    model = GPT2.from_folder(tiny[0])
    [cache] = timing.fill_caches(model, 10, 1)
    speed = timing.time_decode(model, cache, Effort(3, 0.0))
    assert cache.length == 10 == speed.context and len(speed.timing.runs) == 3


def test_speeds():
    speed = timing.Speed(1, 8, 64, Timing((0.02, 0.04, 0.05)), 2.0)
    assert speed.tokens_per_second == 200


def test_limits_of_a_machine():
    limits = machine.measure_limits(1_000_003, 2, np.float32, ONCE)
    assert limits.bytes_read == 1_000_000 and limits.bytes_per_second > 1e6
    assert limits.flops_per_second > 1e6
    better = limits.best_of(machine.SpeedLimits(1.0, 5, 1e20))
    assert better == machine.SpeedLimits(limits.bytes_per_second, 1_000_000, 1e20)


@pytest.mark.parametrize("size", [1, 3, 4095, 4097])
def test_read_bandwidth_of_little(size):
    assert machine.read_bandwidth(np.ones(size), 4, ONCE) > 0


class TestMachine:
    def test_of_this_one(self):
        here = machine.describe_machine(2)
        assert here["threads"] == 2 and here["cpus"] >= 1
        assert here["cpu"] and here["numpy"] == np.__version__

    @pytest.mark.parametrize(
        ("config", "name"),
        [
            ({"Build Dependencies": {"blas": {"name": "mkl", "version": "2024"}}}, "mkl 2024"),
            ({"Build Dependencies": {"blas": {"name": "accelerate"}}}, "accelerate"),
            ({"Build Dependencies": {}}, "unknown"),
            (None, "unknown"),
        ],
    )
    def test_blas(self, config, name, monkeypatch):
        monkeypatch.setattr(np, "show_config", lambda mode: config)
        assert machine.blas_name() == name

    def test_blas_of_a_numpy_that_only_prints(self, monkeypatch):
        monkeypatch.setattr(np, "show_config", lambda: None)
        assert machine.blas_name() == "unknown"


class TestProcess:
    def test_a_start_that_fails(self, tmp_path):
        with pytest.raises(GPT2NPError, match=r"failed: gpt2np generate: error: .*config\.json"):
            process.time_to_first_token(tmp_path, "float32", None, 1, 1024, 1)

    def test_memory_that_fails(self, tmp_path):
        with pytest.raises(GPT2NPError, match=r"failed: .*config\.json"):
            process.measure_memory(tmp_path, "float32", None, 1)

    def test_memory_is_the_childs_own(self, tiny):
        ballast = np.ones(50_000_000)  # 400 MB
        memory = process.measure_memory(tiny[0], "float32", None, 1)
        assert memory["peak"] < 300e6 < ballast.nbytes

    def test_where_the_system_tells_no_memory(self, monkeypatch):
        monkeypatch.setattr(process, "Path", lambda _: SimpleNamespace(is_file=lambda: False))
        assert process.peak_memory() > 1e6  # getrusage
        monkeypatch.setattr(sys, "platform", "win32")
        assert process.peak_memory() is None
