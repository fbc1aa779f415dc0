"""`generate --prompts FILE --out FILE.jsonl`: the terminal's side of it."""

import argparse
import signal
import sys
from typing import TYPE_CHECKING, Any

from gpt2np.cli.generation_options import options_as_typed
from gpt2np.cli.kept_work import tell_interrupted, writing
from gpt2np.cli.model_and_prompt import load_model
from gpt2np.cli.streams import notice
from gpt2np.errors import GPT2NPError, InvalidArgumentError

if TYPE_CHECKING:
    from gpt2np.language_model import LanguageModel
    from gpt2np.prompts.job import Describe, Outcome


def run_prompts(args: argparse.Namespace, options: dict[str, Any], describe: "Describe") -> int:
    """Continue the prompts of --prompts; returns the exit code, 1 if lines were skipped or none
    could be used."""
    _check(args)
    from gpt2np.prompts.job import job_seed, partial_folder
    from gpt2np.prompts.lines import check_prompts

    total = check_prompts(args.prompts)
    lm, identity = _load(args)
    options = {**options, "seed": job_seed(args.out, options.get("seed"))}
    notice(f"seed: {options['seed']}")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # so that the bar's line is ended
    try:
        with writing(args.out):
            outcome = _run(args, lm, identity, options, describe, total)
    except KeyboardInterrupt:
        return tell_interrupted(partial_folder(args.out))
    if not outcome.written:
        raise GPT2NPError(f"{args.prompts} holds no usable prompt; {args.out} is not written")
    skipped = f", {_counted(outcome.skipped, 'line')} skipped" if outcome.skipped else ""
    notice(f"{_counted(outcome.written, 'text')} in {args.out}{skipped}")
    return 1 if outcome.skipped else 0


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _check(args: argparse.Namespace) -> None:
    if args.out is None:
        raise InvalidArgumentError("--prompts needs --out FILE.jsonl, where the texts go")
    if args.prompt is not None or args.file is not None:
        raise InvalidArgumentError("--prompts and another prompt contradict each other; give one")
    if args.out.suffix != ".jsonl":
        raise InvalidArgumentError(f"--out {args.out} must end in .jsonl")
    if not args.out.parent.is_dir():
        raise InvalidArgumentError(f"the folder {args.out.parent} does not exist; make it first")
    if args.out.is_dir():
        raise InvalidArgumentError(f"--out {args.out} is a folder; choose another name")
    if args.json or args.no_echo:
        given = "--json" if args.json else "--no-echo"
        raise InvalidArgumentError(f"{given} has no place with --prompts: --out is JSON Lines")
    if args.out.exists() and not args.force:
        raise InvalidArgumentError(f"{args.out} exists already; give --force to replace it")
    if args.out.exists() and args.prompts.exists() and args.out.samefile(args.prompts):
        raise InvalidArgumentError("--prompts and --out are the same file")


def _load(args: argparse.Namespace) -> "tuple[LanguageModel, str]":
    """The model, and a text that changes with its files."""
    from gpt2np.data.append_log import input_digests
    from gpt2np.hub import find_model
    from gpt2np.hub.model_files import COMPANIONS, list_weight_files

    lm, told = load_model(args)
    for line in told:
        notice(line)
    folder = find_model("bundled" if lm.fallback_reason else args.model).folder
    patterns = ("config.json", *list_weight_files(folder), *COMPANIONS)
    files = {file for pattern in patterns for file in folder.glob(pattern)}
    return lm, input_digests("", sorted(files))[-1]


def _run(
    args: argparse.Namespace,
    lm: "LanguageModel",
    identity: str,
    options: dict[str, Any],
    describe: "Describe",
    total: int,
) -> "Outcome":
    from tqdm import tqdm

    from gpt2np.prompts.job import PromptJob, Watcher

    with tqdm(total=total, desc="continuing", unit="line", leave=False, disable=None) as bar:

        def resume(done: int) -> None:
            bar.write(f"going on at line {done + 1:,}", file=sys.stderr)
            bar.initial = bar.n = done

        def progress(done: int, tokens: int) -> None:
            seconds = bar.format_dict["elapsed"]
            bar.set_postfix_str(
                f"{tokens / seconds:.0f} tokens/s" if seconds else "", refresh=False
            )
            bar.update(done - bar.n)

        watcher = Watcher(
            resumed=resume,
            restarted=lambda: bar.write("what is kept is of another job; begun anew", sys.stderr),
            progress=progress,
            skipped=lambda problem: bar.write(f"skipped: {problem}", file=sys.stderr),
        )
        with options_as_typed():
            job = PromptJob(lm, args.prompts, args.out, describe, options, watcher, identity)
        return job.run()
