"""Measure how fast a model runs here, beside what this machine could do.

Prompts, single tokens, batches, the start of a process, and memory; and how
fast this machine reads and multiplies, so that one sees how much of it is used.
It takes up to a minute with GPT-2 small. Other work on the machine disturbs it.
"""

import argparse
import json
import signal
from datetime import datetime
from typing import TYPE_CHECKING

from gpt2np.cli.streams import notice
from gpt2np.kernels.threads import set_threads, thread_count

if TYPE_CHECKING:
    from gpt2np.benchmark.suite import Results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a Hugging Face id, a folder, or 'bundled'; default: as for generate",
    )
    add("--quick", action="store_true", help="fewer repetitions, so less certain numbers")
    add("--json", action="store_true", help="print one JSON object")
    add("--threads", type=int, metavar="N", help="processors to use (default: all)")
    add("--dtype", choices=("float32", "float64"), default="float32", help="default: float32")


def run(args: argparse.Namespace) -> int:
    """Measure and print; returns the exit code."""
    set_threads(args.threads)
    from gpt2np.benchmark.report import as_json, as_text

    results = _measure(args)
    date = datetime.now().astimezone()
    if args.json:
        print(json.dumps(as_json(results, date), ensure_ascii=False))
    else:
        print(as_text(results, date))
    return 0


def _measure(args: argparse.Namespace) -> "Results":
    from tqdm import tqdm

    from gpt2np.benchmark.suite import plan_for, run_suite
    from gpt2np.checkpoint.load import read_checkpoint
    from gpt2np.hub import find_model

    source = find_model(args.model)
    if source.fallback_reason:
        notice(f"model: {source.name} ({source.fallback_reason}; name another as MODEL)")
    plan = plan_for(read_checkpoint(source.folder).config.n_positions, args.quick)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # so that the bar's line is ended
    with tqdm(total=plan.n_measurements, leave=False, disable=None, bar_format=_BAR) as bar:

        def tell(part: str) -> None:
            bar.set_description(part, refresh=False)
            bar.n += 1  # the number of the part that begins
            bar.refresh()

        return run_suite(source, args.dtype, thread_count(), plan, tell)


_BAR = "{desc:<28}{bar:20} {n_fmt} of {total_fmt}, {elapsed}"
