"""Train a GPT-2 in NumPy on a file of token ids.

CORPUS is a .bin or .npy file that gpt2np encode wrote. OUT is a folder that
gpt2np and transformers can load; the file loss.svg in OUT shows the loss curve.

Without --from, the command trains a new model from random weights; --model must
then name the vocabulary that CORPUS was encoded with. With --from MODEL, it
fine-tunes MODEL, which keeps its vocabulary and architecture. The optimizer is
AdamW with a warm-up and a cosine schedule, in float32. A CPU is fast enough to
train models of a few million parameters, and to fine-tune GPT-2 on a few pages.

An interrupted run is kept beside OUT, in OUT.partial. The same command resumes
the run, without any effect on the result; --force discards the run.
"""

import argparse
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpt2np.cli.declared_options import add_groups, given_options
from gpt2np.cli.jobs import exit_on_interrupt
from gpt2np.cli.model_options import add_vocabulary_argument, load_tokenizer
from gpt2np.cli.output import print_stderr
from gpt2np.errors import InvalidArgumentError, check_argument
from gpt2np.interrupts import held_signals
from gpt2np.progress import progress_bar
from gpt2np.runtime.options import MODEL_HELP
from gpt2np.training.options import ARCHITECTURE, TrainerOptions

if TYPE_CHECKING:
    from gpt2np.training.trainer import Trainer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    corpus = "File of token ids: .bin or .npy"
    parser.add_argument("corpus", type=Path, metavar="CORPUS", help=corpus)
    out = "Folder to write; must be new or empty"
    parser.add_argument("out", type=Path, metavar="OUT", help=out)
    add_vocabulary_argument(parser)
    parser.add_argument(
        "--from",
        dest="from_model",
        metavar="MODEL",
        help=f"Model to fine-tune: {MODEL_HELP} (default: train a new model)",
    )
    groups = add_groups(parser, TrainerOptions)
    evaluated = "Token ids to evaluate on; OUT gets the weights with the lowest loss on FILE"
    groups["Evaluation"].add_argument("--eval-corpus", type=Path, metavar="FILE", help=evaluated)
    add = parser.add_argument_group("Output").add_argument
    add("--save-steps", type=int, default=500, metavar="N",
        help="Save the training state every N steps (default: 500)")  # fmt: skip
    add("--logging-steps", type=int, default=100, metavar="N",
        help="Print the mean loss to standard error every N steps (default: 100)")  # fmt: skip
    add("--force", action="store_true", help="Discard an interrupted run, and start over")


def run(args: argparse.Namespace) -> int:
    from gpt2np.checkpoint.convert import check_new_folder

    check_new_folder(args.out)
    for name in ("save_steps", "logging_steps"):
        check_argument(getattr(args, name) >= 1, name, getattr(args, name), "at least 1")
    options = TrainerOptions(**given_options(args, TrainerOptions))
    if args.from_model is not None:
        given = [name for name in [*ARCHITECTURE, "model"] if getattr(args, name) is not None]
        if given:
            raise InvalidArgumentError(f"{given[0]} cannot be combined with --from", param=given[0])
    if args.eval_steps is not None and not args.eval_corpus:
        raise InvalidArgumentError("--eval-steps has no effect without --eval-corpus")
    _train(args, options)
    print(args.out)
    return 0


def _train(args: argparse.Namespace, options: TrainerOptions) -> None:
    """Train, or resume, until the folder of the model is written."""
    from gpt2np.data.resumable import work_folder
    from gpt2np.training.trainer import Trainer

    if args.from_model is not None:
        import gpt2np

        lm = gpt2np.load(args.from_model)
        tokenizer, model, description = lm.tokenizer, lm.model, f"model: {lm.name}"
    else:
        (tokenizer, description), model = load_tokenizer(args.model), None
    print_stderr(description)
    more = {"model": model, "eval_corpus": args.eval_corpus, "force": args.force}
    with exit_on_interrupt(None if args.force else args.out), work_folder(args.out) as folder:
        trainer = Trainer(args.corpus, folder, tokenizer, options, **more)
        if options.warmup_steps >= options.max_steps:
            print_stderr("the warm-up takes all steps; give short runs fewer --warmup-steps")
        try:
            _take_steps(trainer, options.max_steps, args.save_steps, args.logging_steps)
        except KeyboardInterrupt:
            with held_signals([signal.SIGINT], may_hang=True):
                trainer.save()
            raise
        if trainer.evaluations:
            loss, step = min((loss, step) for step, loss in trainer.evaluations)
            print_stderr(
                f"the lowest evaluation is {loss:.4f}: the weights of step {step:,} are kept"
            )
        trainer.finish(args.out)


def _take_steps(trainer: "Trainer", max_steps: int, save_steps: int, logging_steps: int) -> None:
    """Train to the end of the run; Ctrl-C takes effect between two steps or in an evaluation."""
    if trainer.step:
        print_stderr(f"resuming at step {trainer.step:,} of {max_steps:,}")
    logged, since = trainer.step, time.monotonic()
    with progress_bar(max_steps, "training", "step") as bar:
        bar.update(trainer.step)
        while trainer.step < max_steps or trainer.evaluation_is_due:
            if trainer.evaluation_is_due:  # the state is saved, so Ctrl-C may interrupt
                print_stderr(f"step {trainer.step:,}: evaluation {trainer.evaluate():.4f}")
                continue
            with held_signals([signal.SIGINT], may_hang=True):
                trainer.take_step()
                is_last = trainer.step == max_steps
                if trainer.step % save_steps == 0 or trainer.evaluation_is_due or is_last:
                    trainer.save()
            bar.update(1)
            if trainer.step % logging_steps == 0 or is_last:
                losses, now = trainer.losses[logged:], time.monotonic()
                seconds = max(now - since, 1e-9)  # some clocks are coarse
                speed = len(losses) * trainer.tokens_per_step / seconds
                mean = sum(losses) / len(losses)
                print_stderr(f"step {trainer.step:,}: {speed:,.0f} tokens/s, loss {mean:.4f}")
                logged, since = trainer.step, now
