"""Measure a model's speed and memory on this machine.

The command measures the peak memory, and the speed of three tasks: to read a
prompt, to generate one text, and to generate several texts together. It
compares the speeds with the limits of this machine: memory bandwidth and matrix
multiplication speed. Close other programs first: they distort the results.
"""

import argparse
import json

from gpt2np.benchmark.suite import report, run_benchmark
from gpt2np.cli.model_options import MODEL_OR_DEFAULT, add_performance_arguments, load_model
from gpt2np.kernels.threads import thread_count
from gpt2np.progress import progress_bar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_OR_DEFAULT)
    quick = "Measure each figure for a quarter of a second instead of a second"
    parser.add_argument("--quick", action="store_true", help=quick)
    output = parser.add_argument_group("Output")
    output.add_argument("--json", action="store_true", help="Print the results as one JSON object")
    add_performance_arguments(parser, "dtype", "weights", "processes")


def run(args: argparse.Namespace) -> int:
    lm = load_model(args)
    seconds = 0.25 if args.quick else 1.0
    with progress_bar(6, "measuring", "figure") as bar:
        results = run_benchmark(lm.model, thread_count(), seconds, lambda _: bar.update(1))
    if args.json:
        print(json.dumps({"model": lm.name, **results}, ensure_ascii=False))
    else:
        print(report(f"{lm.name}: {lm.model.summary}", results))
    return 0
