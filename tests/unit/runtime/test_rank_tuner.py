"""The number of ranks follows simulated times of passes."""

import random

import pytest

from gpt2np.runtime.rank_tuner import RankTuner, useful_ranks


class Machine:
    """Passes whose time depends on the number of ranks; most passes of a trial are no loss."""

    def __init__(self, seconds, cpus=2, noise=0.05, seed=0):
        self.seconds, self.noise = seconds, noise
        self.tuner = RankTuner(cpus, n_head=12)
        self.random = random.Random(seed)
        self.forked = 1
        self.used = []

    def run(self, seconds, rows=1):
        """Run passes for so long. Returns the average time of a pass, and the share of each."""
        clock, counts = 0.0, {}
        while clock < seconds:
            ranks = self.tuner.choose(rows, self.forked)
            time = self.seconds(ranks, rows) * self.random.lognormvariate(0, self.noise)
            if ranks <= self.forked:
                self.tuner.record(rows, ranks, time)
            clock += time
            self.forked = max(self.forked, ranks)
            counts[ranks] = counts.get(ranks, 0) + 1
        passes = sum(counts.values())
        return clock / passes, {ranks: count / passes for ranks, count in counts.items()}


def times(**by_ranks):
    """Times that don't depend on the rows, as in times(r1=0.02, r2=0.015)."""
    return lambda ranks, rows: by_ranks[f"r{ranks}"]


@pytest.mark.parametrize(
    ("cpus", "parts", "expected"),
    [
        (1, 12, [1]),
        (2, 12, [1, 2]),
        (3, 12, [1, 2, 3]),
        (8, 12, [1, 2, 4, 6]),  # with 7 or 8 ranks, the busiest one has 2 parts, too
        (64, 12, [1, 2, 4, 6, 12]),
        (8, 1, [1]),
        (6, 64, [1, 2, 4, 6]),
        (64, 64, [1, 2, 4, 8, 16, 32, 64]),
    ],
)
def test_useful_ranks(cpus, parts, expected):
    assert useful_ranks(cpus, parts) == expected


def test_a_short_generation_forks_nothing():
    machine = Machine(times(r1=0.01, r2=0.001))
    assert machine.run(0.4)[1] == {1: 1}


def test_one_cpu():
    machine = Machine(times(r1=0.01), cpus=1)
    assert machine.run(20)[1] == {1: 1}


@pytest.mark.parametrize("noise", [0.01, 0.1, 0.3])
@pytest.mark.parametrize("one", [0.001, 0.02, 0.5])
@pytest.mark.parametrize("ratio", [0.6, 0.85, 1.2, 3])
def test_the_faster_number_is_found_and_kept(one, ratio, noise):
    costs = []
    for seed in range(3):
        machine = Machine(times(r1=one, r2=one * ratio), noise=noise, seed=seed)
        machine.run(2 + 30 * one)
        costs.append(machine.run(5 + 80 * one)[0] / (one * min(1, ratio)))
    assert sorted(costs)[1] < {0.01: 1.04, 0.1: 1.05, 0.3: 1.12}[noise]


def test_two_equal_numbers_cost_nothing():
    machine = Machine(times(r1=0.01, r2=0.01), noise=0.2)
    assert machine.run(60)[0] < 0.0104


def test_a_neighbour_comes_and_goes():
    """It stops one of two ranks for a while, again and again."""
    machine = Machine(times(r1=0.02, r2=0.015))
    assert machine.run(20)[1][2] > 0.9
    machine.seconds = lambda ranks, _: (
        0.021 if ranks == 1 else machine.random.choice([0.015, 0.03, 0.09])
    )
    assert machine.run(1)[0] < 0.035  # 0.045 without a change
    assert machine.run(30)[0] < 0.0215 * 1.03
    machine.seconds = times(r1=0.02, r2=0.015)
    machine.run(10)
    assert machine.run(20)[1][2] > 0.9


def test_a_quota_of_one_and_a_half_cores():
    """Trials don't show it: the time of two ranks is used up only if they run for long."""

    class Quota:
        period, limit = 0.1, 0.15

        def __init__(self):
            self.clock = self.used = 0.0

        def __call__(self, ranks, rows):
            work, start = {1: 0.01, 2: 0.0085}[ranks], self.clock
            if self.used + work * ranks > self.limit:  # all ranks wait for the next period
                self.clock += self.period - self.clock % self.period
                self.used = 0
            elif (self.clock + work) // self.period > self.clock // self.period:
                self.used = 0
            self.used += work * ranks
            self.clock += work
            return self.clock - start

    machine = Machine(Quota(), noise=0.01)
    machine.run(20)
    assert machine.run(100)[0] < 0.0103


def test_a_stall_changes_nothing():
    machine = Machine(times(r1=0.02, r2=0.015))
    machine.run(20)
    stalls = iter([1.0])
    machine.seconds = lambda ranks, _: next(stalls, {1: 0.02, 2: 0.015}[ranks])
    assert machine.run(3)[1][2] > 0.85


def test_eight_ranks():
    def gain(ranks, rows):
        return 0.04 * (1 / ranks + 0.02 * ranks)  # the fastest number is 6 or 8

    machine = Machine(gain, cpus=8)
    assert machine.run(2)[1].get(6, 0) == 0  # several forks pay only later
    machine.run(10)
    assert machine.run(30)[1][6] > 0.9


def test_eight_ranks_on_two_cores():
    def oversubscribed(ranks, rows):
        return {1: 0.02, 2: 0.015, 4: 0.05, 6: 0.2}[ranks]

    machine = Machine(oversubscribed, cpus=8)
    machine.run(10)
    assert machine.run(60)[0] < 0.0155


def test_groups_of_rows_are_independent():
    machine = Machine(lambda ranks, rows: 0.01 * (1 if (ranks == 1) == (rows == 1) else 2))
    for _ in range(4):
        machine.run(3, rows=1)
        machine.run(3, rows=16)
    assert machine.run(3, rows=1)[1][1] > 0.9
    assert machine.run(3, rows=16)[1][2] > 0.9
    one, sixteen = machine.tuner.choices()
    assert (one.min_rows, one.max_rows, one.ranks) == (1, 1, 1)
    assert (sixteen.min_rows, sixteen.max_rows, sixteen.ranks) == (5, 16, 2)
    assert sixteen.seconds == pytest.approx({1: 0.02, 2: 0.01}, rel=0.1)


def test_passes_get_slower_as_the_context_grows():
    """A slower pass is no reason to change, if the other number becomes slower, too."""
    machine = Machine(lambda ranks, _: {1: 0.02, 2: 0.016}[ranks] * (1 + machine.count / 2000))
    machine.count = 0
    shares = []
    for machine.count in range(0, 2000, 100):
        shares.append(machine.run(2)[1].get(2, 0))
    assert min(shares[2:]) > 0.8


def test_rows_of_different_numbers():
    """Passes over 17 to 64 rows, whose times differ more than those of the numbers of ranks."""
    machine = Machine(lambda ranks, rows: (0.01 + 0.001 * rows) * {1: 1, 2: 0.8}[ranks])
    rows = random.Random(1)
    for _ in range(200):
        machine.run(0.1, rows.randint(17, 64))
    found = [machine.run(0.1, rows.randint(17, 64))[1].get(2, 0) for _ in range(200)]
    assert sum(found) / len(found) > 0.85
