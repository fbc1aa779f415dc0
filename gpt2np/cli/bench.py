"""Measure a model's speed and memory on this machine.

The command measures the speed of prefill, decoding and batches, the time that a
new process takes to start and generate its first token, and the peak memory. It
compares the speeds with the limits of this machine: memory bandwidth and matrix
multiplication speed. With GPT-2 small, the measurements take a minute or two.
Close other programs first, because their load distorts the results.
"""

import argparse
import json

from gpt2np.cli.model_options import (
    MODEL_OR_DEFAULT,
    add_model_or_option,
    add_performance_arguments,
    model_argument,
)
from gpt2np.cli.output import print_stderr, step_bar
from gpt2np.kernels.threads import set_threads, thread_count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_or_option(parser, MODEL_OR_DEFAULT)
    quick = "Repeat each measurement fewer times; faster, but less precise"
    parser.add_argument("--quick", action="store_true", help=quick)
    output = parser.add_argument_group("Output")
    output.add_argument("--json", action="store_true", help="Print the results as one JSON object")
    add_performance_arguments(parser, "dtype", "weights", "processes")


def run(args: argparse.Namespace) -> int:
    set_threads(args.threads)
    from gpt2np.benchmark.suite import plan_for, run_suite, suite_text
    from gpt2np.checkpoint.load import read_checkpoint
    from gpt2np.hub import find_model

    source = find_model(model_argument(args))
    if source.fallback_reason:
        print_stderr(f"model: {source.name} ({source.fallback_reason}; choose another with MODEL)")
    plan = plan_for(read_checkpoint(source.path).config.n_positions, args.quick)
    with step_bar(plan.n_measurements, width=28) as start_step:
        settings = args.dtype or "float32", args.weights, thread_count(), args.processes
        results = run_suite(source, *settings, plan, start_step)
    print(json.dumps(results, ensure_ascii=False) if args.json else suite_text(results))
    return 0
