"""The number of ranks follows the times of passes on simulated machines."""

import math
import random

import pytest

from gpt2np.runtime.rank_tuner import RankTuner

MACHINES = {2: (25e9, 36e9), 4: (25e9, 45e9), 8: (25e9, 60e9), 16: (20e9, 150e9)}
"""Cores → bytes per second of one core and of all cores."""

MODELS = {"bundled": (23e6, 4, 6, 0.8e-3), "124M": (494e6, 12, 12, 1.5e-3)}
"""Name → bytes of the weights, heads, blocks, and seconds of each pass outside of products."""


class Machine:
    """Passes of one row, whose times follow bandwidth, barriers and stragglers."""

    def __init__(self, cores, model, seed=0, noise=0.03):
        self.cores, self.model = cores, MODELS[model]
        self.busy = 0  # cores that another program uses
        self.noise, self.random = noise, random.Random(seed)
        self.tuner = RankTuner(cores, n_head=self.model[1])
        self.passes = []  # ranks and seconds

    def expected(self, ranks):
        """Seconds of a pass: the busiest rank's share, or the memory; then 4 barriers a block."""
        (core, total), (n_bytes, heads, blocks, fixed) = MACHINES[self.cores], self.model
        share = math.ceil(heads / min(ranks, heads)) / heads
        seconds = max(share * n_bytes / core, n_bytes / total) + fixed
        if ranks > 1:
            seconds += (4 * blocks + 1) * (20 + ranks) * 1e-6
            if ranks > self.cores - self.busy:  # ranks wait for those that share a core
                seconds = 2 * seconds + 0.004
        return seconds

    def one_pass(self):
        choice = self.tuner.choice(1)
        ranks = choice.next_ranks
        seconds = self.expected(ranks) * math.exp(self.random.gauss(0, self.noise))
        if self.random.random() < 0.005 * ranks:
            seconds += self.random.expovariate(500)  # a straggler
        choice.record(1, seconds)
        self.passes.append((ranks, seconds))
        return seconds

    def run(self, seconds):
        """Compute passes for so long; return the current number of ranks."""
        while seconds > 0:
            seconds -= self.one_pass()
        return self.tuner.choice(1).ranks

    def loss(self):
        """Seconds per pass with the current number, compared with the best number."""
        best = min(map(self.expected, range(1, self.cores + 1)))
        return self.expected(self.tuner.choice(1).ranks) / best


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("cores", MACHINES)
def test_one_second_of_passes_settles_within_5_percent_of_the_best(cores, model):
    losses = []
    for seed in range(40):
        machine = Machine(cores, model, seed)
        machine.run(1)
        losses.append(machine.loss())
    assert sum(loss > 1.05 for loss in losses) <= 1


def share(machine, count, seconds=2):
    """Run for so long; return the share of the passes with `count` ranks."""
    machine.passes.clear()
    machine.run(seconds)
    return sum(ranks == count for ranks, _ in machine.passes) / len(machine.passes)


def test_a_short_run_uses_one_rank():
    machine = Machine(8, "124M")
    machine.run(0.25)
    assert {ranks for ranks, _ in machine.passes} == {1}


@pytest.mark.parametrize("seed", range(4))
def test_beside_a_busy_program_passes_fall_back_to_one_rank_and_recover(seed):
    machine = Machine(2, "124M", seed)
    machine.run(5)
    assert share(machine, 2) > 0.85
    machine.busy = 1
    machine.run(1)
    assert share(machine, 1, 20) > 0.95
    machine.busy = 0
    machine.run(8)
    assert share(machine, 2, 20) > 0.9


@pytest.mark.parametrize("seed", range(4))
def test_beside_a_program_that_was_busy_before_passes_stay_on_one_rank(seed):
    machine = Machine(2, "124M", seed)
    machine.busy = 1
    machine.run(3)
    assert share(machine, 1, 20) > 0.95


@pytest.mark.parametrize(("cores", "model"), [(2, "bundled"), (8, "124M"), (16, "124M")])
def test_trials_cost_little(cores, model):
    machine = Machine(cores, model, noise=0.1)
    machine.run(2)
    machine.passes.clear()
    machine.run(60)
    best = min(map(machine.expected, range(1, cores + 1)))
    mean = sum(map(machine.expected, (ranks for ranks, _ in machine.passes))) / len(machine.passes)
    assert mean < 1.05 * best


def test_passes_that_get_slower_as_the_context_grows_change_nothing():
    machine = Machine(2, "124M")
    machine.run(2)
    expected, shares = machine.expected, []
    for i in range(20):
        machine.expected = lambda ranks, i=i: expected(ranks) * (1 + i / 20)
        shares.append(share(machine, 2))
    assert sum(shares) / len(shares) > 0.9


def test_passes_over_other_numbers_of_rows_have_a_choice_of_their_own():
    tuner = RankTuner(cpus=2, n_head=12)
    chosen = {1: {1: 0.02, 2: 0.03}, 16: {1: 0.04, 2: 0.02}}
    for _ in range(100):
        for rows, seconds in chosen.items():
            choice = tuner.choice(rows)
            choice.record(rows, seconds[choice.next_ranks])
    one, sixteen = tuner.choice(1), tuner.choice(9)
    assert (one.ranks, sixteen.ranks, tuner.choice(1000).ranks) == (1, 2, 1)
    assert sixteen is tuner.choice(5) is tuner.choice(16)


@pytest.mark.parametrize(
    ("cpus", "heads", "numbers"), [(1, 12, [1]), (6, 12, [1, 2, 4, 6]), (64, 12, [1, 2, 4, 8, 12])]
)
def test_short_passes_use_at_most_as_many_ranks_as_cpus_and_heads(cpus, heads, numbers):
    tuner = RankTuner(cpus, heads)
    for rows in (1, 64):
        choice = tuner.choice(rows)
        used = set()
        for _ in range(60):
            used.add(choice.next_ranks)
            choice.record(rows, 1 / choice.next_ranks)
        assert sorted(used) == numbers
    assert tuner.max_ranks == min(cpus, 64)
