"""Compare `processes="auto"` with fixed numbers of processes, while other programs need the CPUs.

    python benchmarks/ranks.py [--model bundled small] [--condition quiet "quota 1" …] [--rounds 5]

Each condition runs in three new processes, whose models take turns: one process, two, and auto.
The order in which the models are created differs, because the first model is often a few percent
faster. Neighbors are loops that keep a CPU busy. Quotas are real control groups (version 1 or 2),
which only root can create. The table shows medians of tokens per second, and the ratio of auto's
median to the best other median. The greedy ids must be the same in all turns. "small" is GPT-2
small's shape with random weights.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpt2np import GPT2

# neighbors, quota in CPUs, number of CPUs in the affinity; None: no limit
CONDITIONS: dict[str, tuple[int, float | None, int | None]] = {
    "quiet": (0, None, None),
    "1 neighbor": (1, None, None),
    "2 neighbors": (2, None, None),
    "quota 2": (0, 2, None),
    "quota 1": (0, 1, None),
    "quota 0.5": (0, 0.5, None),
    "affinity 1": (0, None, 1),
    "eight ranks": (0, None, None),
}
WORK = ("1 sequence", "16 sequences", "prompt of 20", "prompt of 900")
SETTLE_S = 4.0  # a first choice that a stall made wrong is corrected within some seconds
_WARM_UP_S = 0.15  # longer than the period of a quota
CGROUPS = Path("/sys/fs/cgroup")


@contextmanager
def control_group(*, cpus: float | None = None, memory: int | None = None) -> Iterator[Path]:
    """Create a control group with a limit of some CPUs, or of some bytes of memory.

    Yields the file that takes process ids.

    Raises:
        OSError: this user may not create control groups.
    """
    controller = "memory" if memory else "cpu"
    quota = str(memory or int((cpus or 1) * 100_000))
    is_v1 = (CGROUPS / controller).exists()
    group = (CGROUPS / controller if is_v1 else CGROUPS) / f"gpt2np-{os.getpid()}"
    group.mkdir()
    try:
        if is_v1:
            file = "memory.limit_in_bytes" if memory else "cpu.cfs_quota_us"
            (group / file).write_text(quota)
        else:
            (group / f"{controller}.max").write_text(quota if memory else f"{quota} 100000")
        yield group / "cgroup.procs"
    finally:
        for _ in range(100):  # an ended process leaves its group a moment later
            with suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.05)


def measure_in(
    condition: str, model: str, seconds: float, rounds: int, first: int
) -> dict[str, Any]:
    """Run `measure` in a new process under a condition, and return its results.

    `first` is the index of the model that is created first.
    """
    neighbors, quota, cpus = CONDITIONS[condition]
    with ExitStack() as stack:
        command = [sys.executable, __file__, "--measure", model, str(seconds), str(rounds)]
        command += [str(first), "8" if condition == "eight ranks" else "2"]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        stack.callback(process.kill)
        if quota:
            stack.enter_context(control_group(cpus=quota)).write_text(str(process.pid))
        if cpus:
            os.sched_setaffinity(process.pid, sorted(os.sched_getaffinity(0))[:cpus])
        for _ in range(neighbors):
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(busy.wait)
            stack.callback(busy.kill)
        stdout, _ = process.communicate("start\n")
    if process.returncode:
        raise SystemExit(f"the measurement failed with exit code {process.returncode}")
    return dict(json.loads(stdout))


def measure(name: str, seconds: float, rounds: int, first: int, ranks: int) -> dict[str, Any]:
    """Time all kinds of work, with the models in turns. With `ranks` 8, eight ranks are forced.

    Returns the tokens per second of each turn, by work and number of processes.
    """
    from gpt2np.runtime.rank_tuner import RankTuner

    numbers: list[Any] = [1, 2, "auto"] if ranks == 2 else [1, 2, ranks, "auto"]
    models = {}
    for number in numbers[first:] + numbers[:first]:
        models[str(number)] = model = create_model(name)
        model.forward([[1]])  # a first short pass never has several ranks
        model.processes = number
        if number == "auto" and ranks > 2 and model._group is not None:
            model.processes = ranks  # what a machine with so many cores would try
            assert model._group is not None
            model._group.tuner = RankTuner(ranks, model.config.n_head)
    results: dict[str, Any] = {"rates": {}, "ids": {}, "choices": {}}
    for work in WORK:
        runs = {number: Work(model, work) for number, model in models.items()}
        rates: dict[str, list[float]] = {number: [] for number in models}
        for number, run in runs.items():
            run.repeat(SETTLE_S if number == "auto" else 0)
        order, shuffle = list(runs), random.Random(0).shuffle
        for _ in range(rounds):
            shuffle(order)
            for number in order:
                runs[number].repeat(_WARM_UP_S)  # a turn can suffer from the turn before
                rates[number].append(runs[number].repeat(seconds))
        longest = max((run.ids for run in runs.values()), key=len)
        for number, run in runs.items():
            assert run.ids == longest[: len(run.ids)], f"{work}: other ids with {number}"
        results["rates"][work], results["ids"][work] = rates, longest[:20]
    for choice in models["auto"].rank_choices:
        results["choices"][f"{choice.min_rows}–{choice.max_rows}"] = choice.ranks, choice.seconds
    return results


def create_model(name: str) -> GPT2:
    """Load the bundled model, or create GPT-2 small's shape with random weights."""
    import numpy as np

    import gpt2np
    from gpt2np.checkpoint.names import weight_shapes
    from gpt2np.model import GPT2, GPT2Config

    if name == "bundled":
        return gpt2np.load(name).model
    config, rng = GPT2Config(), np.random.default_rng(0)
    shapes = weight_shapes(config).items()
    return GPT2(config, {n: 0.05 * rng.standard_normal(s, np.float32) for n, s in shapes})


class Work:
    """Passes of one kind, again and again.

    Attributes:
        ids: the next ids of the first sequence so far.
        tokens: new tokens of a pass.
    """

    def __init__(self, model: GPT2, name: str) -> None:
        """Prepare the prompts. A decode starts anew after 100 steps."""
        self.model, self.ids = model, list[int]()
        length = min(900, model.config.n_positions - 10) if name == "prompt of 900" else 20
        self.is_decode = "sequence" in name
        count = int(name.split()[0]) if self.is_decode else 1
        self.tokens = count if self.is_decode else length
        self._prompts = [[(7 * i + 13 * j) % 4000 for j in range(length)] for i in range(count)]
        self._limit = length + 100 if self.is_decode else 0
        self._caches: list[Any] = []
        self._pending: list[list[int]] = []

    def repeat(self, seconds: float) -> float:
        """Run passes for some time. Returns tokens per second.

        The prompts of a decode are not timed.
        """
        passes, elapsed = 0, 0.0
        while True:
            is_new = not self._caches or self._caches[0].length >= self._limit
            if is_new:
                self._caches = [self.model.new_cache() for _ in self._prompts]
                self._pending = self._prompts
            last = [stop - 1 for stop in accumulate(map(len, self._pending))]
            start = time.perf_counter()
            logits = self.model.forward(self._pending, self._caches, logits_indices=last)
            ids = logits.argmax(1).tolist()
            if not (is_new and self.is_decode):
                passes, elapsed = passes + 1, elapsed + time.perf_counter() - start
            self.ids.append(ids[0])
            self._pending = [[token_id] for token_id in ids]
            if passes and elapsed >= seconds:
                return passes * self.tokens / elapsed


def rows(model: str, condition: str, results: dict[str, Any]) -> Iterator[str]:
    """Yield one row of the table for each kind of work."""
    for work, turns in results["rates"].items():
        medians = {number: median(turn) for number, turn in sorted(turns.items())}
        auto = medians.pop("auto")
        rates = " / ".join(f"{rate:.0f}" for rate in medians.values())
        ratio = auto / max(medians.values())
        yield f"| {model} | {condition} | {work} | {rates} | {auto:.0f} | {ratio:.2f} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the conditions, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add, every = parser.add_argument, list(CONDITIONS)
    add("--model", nargs="+", choices=("bundled", "small"), default=["bundled", "small"])
    add("--condition", nargs="+", choices=every, default=every, metavar="CONDITION")
    add("--seconds", type=float, default=0.4, help="length of a turn (default: 0.4)")
    add("--rounds", type=int, default=3, help="turns of each number in a process (default: 3)")
    add("--json", type=Path, help="file for all results")
    args = parser.parse_args(arguments)
    print("| model | condition | work | tokens/s with 1 / 2 (/ 8) processes | auto | auto ÷ best |")
    print("|---|---|---|---|---|---|")
    results: dict[str, Any] = {}
    for model in args.model:
        ids: dict[str, Any] = {}
        for condition in args.condition:
            load = os.getloadavg()[0]
            rates: dict[str, dict[str, list[float]]] = {}
            try:
                for first in range(3):
                    found = measure_in(condition, model, args.seconds, args.rounds, first)
                    for work, turns in found["rates"].items():
                        for number, turn in turns.items():
                            rates.setdefault(work, {}).setdefault(number, []).extend(turn)
                    for work, new in found["ids"].items():
                        old = ids.setdefault(work, new)
                        same = min(len(old), len(new))
                        assert old[:same] == new[:same], f"{condition}, {work}: other ids"
            except OSError as error:
                print(f"{condition} is skipped: {error}", file=sys.stderr)
                continue
            found |= {"rates": rates, "load before": load}
            results[f"{model}, {condition}"] = found
            print(*rows(model, condition, found), sep="\n", flush=True)
            if args.json:
                args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        sys.stdin.readline()  # until the process is in its control group
        name, seconds, *more = sys.argv[2:]
        print(json.dumps(measure(name, float(seconds), *map(int, more))))
    else:
        main()
