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
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from gpt2np.cli.model_options import add_vocabulary_argument, load_tokenizer
from gpt2np.cli.output import (
    check_not_hidden,
    interrupt_handler,
    print_stderr,
    report_interrupted,
    write_errors,
)
from gpt2np.errors import GPT2NPError, InvalidArgumentError, check_argument, install_hint
from gpt2np.training.options import TrainerOptions

if TYPE_CHECKING:
    from gpt2np.training.trainer import Trainer

_HELP = {
    "n_layer": "Number of blocks",
    "n_head": "Number of attention heads per block",
    "n_embd": "Width of the residual stream, a multiple of the number of heads",
    "n_positions": "Context length in tokens, also the length of the training sequences",
    "max_steps": "Number of training steps",
    "per_device_train_batch_size": "Sequences per step",
    "learning_rate": "Peak learning rate; it falls to 0 in the last 60%% of the steps",
    "warmup_steps": "Steps until the peak learning rate",
    "weight_decay": "Weight decay of the matrices inside the blocks",
    "max_grad_norm": "Scale down gradients to this norm if their norm is larger",
    "seed": "Seed of the initial weights and of the sequences drawn",
    "bf16": "Compute in bfloat16; faster where the processor supports it",
    "torch_compile": "Compile the training step; needs a C++ compiler",
}
_MODEL_OPTIONS = ("n_layer", "n_head", "n_embd", "n_positions")
_PERFORMANCE_OPTIONS = ("bf16", "torch_compile")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    corpus = "File of token ids: .bin or .npy"
    parser.add_argument("corpus", type=Path, metavar="CORPUS", help=corpus)
    out = "Folder to write; must be new or empty"
    parser.add_argument("out", type=Path, metavar="OUT", help=out)
    add_vocabulary_argument(parser)
    titles = ("Architecture", "Training", "Performance", "Output")
    groups = {title: parser.add_argument_group(title) for title in titles}
    for field in fields(TrainerOptions):
        option, help_text = f"--{field.name.replace('_', '-')}", _HELP[field.name]
        if field.name in _PERFORMANCE_OPTIONS:
            groups["Performance"].add_argument(option, action="store_true", help=help_text)
            continue
        title = "Architecture" if field.name in _MODEL_OPTIONS else "Training"
        groups[title].add_argument(
            option,
            type=type(field.default),
            default=field.default,
            metavar="N" if isinstance(field.default, int) else "X",
            help=f"{help_text} (default: {field.default})",
        )
    add = groups["Output"].add_argument
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
    names = [field.name for field in fields(TrainerOptions)]
    options = TrainerOptions(**{name: getattr(args, name) for name in names})
    try:
        from gpt2np.training.trainer import Trainer
    except ModuleNotFoundError as error:
        raise GPT2NPError(
            f"training needs the package {error.name}; {install_hint('train')}"
        ) from error
    tokenizer, description = load_tokenizer(args.model)
    print_stderr(description)
    signal.signal(signal.SIGINT, interrupt_handler)
    with write_errors(args.out, check_filename=True):
        trainer = Trainer(args.corpus, args.out, tokenizer, options, force=args.force)
        try:
            _train(trainer, options.max_steps, args.save_steps, args.logging_steps)
        except KeyboardInterrupt:
            with interrupt_handler.deferred():
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
            with interrupt_handler.deferred():
                losses.append(trainer.take_step())
                if trainer.step % save_steps == 0:
                    trainer.save()
            bar.update()
            if trainer.step % logging_steps == 0 or trainer.step == max_steps:
                mean = sum(losses) / len(losses)
                bar.write(f"step {trainer.step:,}: loss {mean:.4f}", file=sys.stderr)
                losses.clear()
