"""Generate a text again, and check that each step gives the same numbers.

FILE is a receipt that 'gpt2np generate --receipt FILE' has written. The receipt
contains the prompt, the options, and digests of the model and of each step's
logits. The exit code is 0 if all logits and tokens have the same bits, and 1 if
a step differs.

The receipt of a run with --exact is the same on every machine. Without --exact,
rounding may differ on another processor, or with another version of NumPy.
"""

import argparse
from pathlib import Path

from gpt2np.cli.declared_options import add_option
from gpt2np.cli.model_options import add_performance_arguments, load_model
from gpt2np.cli.output import print_stderr
from gpt2np.errors import CheckpointError
from gpt2np.kernels.threads import set_threads
from gpt2np.runtime.options import MODEL_HELP, ModelOptions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("receipt", type=Path, metavar="FILE", help="Receipt to replay")
    add_option(
        parser, ModelOptions, "model", help=f"{MODEL_HELP} (default: the model of the receipt)"
    )
    add_performance_arguments(parser)


def run(args: argparse.Namespace) -> int:
    set_threads(args.threads)
    from gpt2np.parity.replay import read_receipt, replay

    content = read_receipt(args.receipt)
    args.model = args.model or content["model"]
    args.exact, args.dtype = content["exact"], content["dtype"]
    lm = load_model(args)
    try:
        difference = replay(content, lm)
    except CheckpointError as error:
        raise CheckpointError(f"{args.receipt}: {error}") from error
    if difference is None:
        print("same: every step's logits and token")
        return 0
    print(difference)
    if not lm.model.exact:
        print_stderr("the receipt is not of an exact model: rounding differs between processors")
    return 1
