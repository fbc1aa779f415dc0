"""Train a new GPT-2 with PyTorch on a file of token ids.

CORPUS is a .bin or .npy file that gpt2np encode wrote; --model must be the
vocabulary that it was encoded with. OUT is a folder that gpt2np and
transformers load. Needs the extra "train": PyTorch and transformers. Uses a GPU
if PyTorch finds one.

Run an interrupted command again to resume: the result is the same as without
the interruption, on a CPU to the bit. If the corpus or an option has changed,
the command fails and names the change; --force starts over.
"""

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpt2np.cli.declared_options import add_groups, given_options
from gpt2np.cli.model_options import add_vocabulary_argument, load_tokenizer
from gpt2np.cli.output import (
    check_not_hidden,
    handle_interrupt,
    print_stderr,
    report_interrupted,
    write_errors,
)
from gpt2np.errors import GPT2NPError, InvalidArgumentError, check_argument, install_hint
from gpt2np.interrupts import held_signals
from gpt2np.training.options import TrainerOptions

if TYPE_CHECKING:
    from gpt2np.training.trainer import Trainer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    corpus = "File of token ids: .bin or .npy"
    parser.add_argument("corpus", type=Path, metavar="CORPUS", help=corpus)
    out = "Folder to write; must be new or empty"
    parser.add_argument("out", type=Path, metavar="OUT", help=out)
    add_vocabulary_argument(parser)
    add_groups(parser, TrainerOptions)
    add = parser.add_argument_group("Output").add_argument
    add("--save-steps", type=int, default=500, metavar="N",
        help="Save the state of the training every N steps (default: 500)")  # fmt: skip
    add("--logging-steps", type=int, default=100, metavar="N",
        help="Print the mean loss to standard error every N steps (default: 100)")  # fmt: skip
    add("--force", action="store_true", help="Discard unfinished work of another run")


def run(args: argparse.Namespace) -> int:
    """Train a model, write it to OUT and return the exit code."""
    from gpt2np.checkpoint.convert import check_new_folder

    if args.out in (Path(), Path("-")):
        raise InvalidArgumentError(f"OUT is {str(args.out)!r}; name a new folder")
    check_not_hidden(args.out, [])
    check_new_folder(args.out)
    for name in ("save_steps", "logging_steps"):
        value = getattr(args, name)
        check_argument(value >= 1, name, value, "at least 1")
    options = TrainerOptions(**given_options(args, TrainerOptions))
    try:
        from gpt2np.training.trainer import Trainer
    except ModuleNotFoundError as error:
        raise GPT2NPError(
            f"training needs the package {error.name}; {install_hint('train')}"
        ) from error
    tokenizer, description = load_tokenizer(args.model)
    print_stderr(description)
    signal.signal(signal.SIGINT, handle_interrupt)
    with write_errors(args.out, check_filename=True):
        trainer = Trainer(args.corpus, args.out, tokenizer, options, force=args.force)
        try:
            _train(trainer, options.max_steps, args.save_steps, args.logging_steps)
        except KeyboardInterrupt:
            with held_signals([signal.SIGINT], may_hang=True):
                trainer.save()
            return report_interrupted(trainer.folder)
        trainer.finish()
    print(args.out)
    return 0


def _train(trainer: "Trainer", max_steps: int, save_steps: int, logging_steps: int) -> None:
    """Train up to step `max_steps`; Ctrl-C takes effect only between two steps."""
    from tqdm import tqdm

    if trainer.step:
        print_stderr(f"resuming at step {trainer.step:,} of {max_steps:,}")
    losses: list[float] = []
    start = trainer.step
    with tqdm(
        total=max_steps, initial=start, desc="training", unit="step", leave=False, disable=None
    ) as bar:
        while trainer.step < max_steps:
            with held_signals([signal.SIGINT], may_hang=True):
                losses.append(trainer.take_step())
                if trainer.step % save_steps == 0:
                    trainer.save()
            bar.update()
            if trainer.step % logging_steps == 0 or trainer.step == max_steps:
                mean = sum(losses) / len(losses)
                bar.write(f"step {trainer.step:,}: loss {mean:.4f}", file=sys.stderr)
                losses.clear()
