"""Show what a model does with a prompt: one HTML file, every number real.

From text to tokens to vectors, through one block opened, to the next token and
how it is sampled; with the logit lens, the KV cache, every tensor, where the
time went, and how far float32 is from float64. The file needs no network and
no program but a browser. A page holds at most 64 tokens; of a longer prompt
--window START:STOP chooses some, which the model is then given alone.
"""

import argparse
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpt2np.cli.model_and_prompt import (
    add_model_arguments,
    add_prompt_arguments,
    given_prompt,
    load_model,
)
from gpt2np.cli.streams import notice
from gpt2np.errors import GPT2NPError, InvalidArgumentError

if TYPE_CHECKING:
    from gpt2np.explain import Page
    from gpt2np.language_model import LanguageModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add_prompt_arguments(parser)
    output = "the page to write; one that is there already is replaced"
    add("-o", "--output", type=Path, required=True, metavar="FILE", help=output)
    add_model_arguments(parser, dtype=False)
    window = "the page is about these tokens of the prompt, counted from 0, without STOP"
    add("--window", type=_window, metavar="START:STOP", help=window)
    add("--layer", type=int, metavar="L", help="the block to open (default: in the middle)")
    head = "its head to look at (default: the one that looks most at one other token)"
    add("--head", type=int, metavar="H", help=head)
    add("--position", type=int, metavar="T", help="the token to follow (default: the last)")
    add("-n", "--steps", type=int, default=8, metavar="N", help="tokens to go on by (default: 8)")
    add(
        "--no-float64",
        action="store_true",
        help="don't compute it once more in float64, which takes twice the model's memory",
    )


def _window(text: str) -> slice:
    start, colon, stop = text.partition(":")
    if not colon or not all(part == "" or part.isdecimal() for part in (start, stop)):
        raise argparse.ArgumentTypeError(f"{text!r} is not START:STOP, as in 0:64")
    return slice(int(start or 0), int(stop) if stop else None)


def run(args: argparse.Namespace) -> int:
    """Write the page; returns the exit code."""
    prompt = given_prompt(args)
    if args.steps < 1:
        raise InvalidArgumentError(f"--steps is {args.steps}; it must be at least 1")
    _check_output(args.output)
    lm, told = load_model(args)
    for line in told:
        notice(line)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # so that the bar's line is ended
    page = _explained(lm, prompt, args)
    _write(args.output, page.html)
    notice(f"{len(page.run.ids)} tokens, {len(page.html.encode()):,} bytes")
    print(args.output, flush=True)
    return 0


def _explained(lm: "LanguageModel", prompt: str, args: argparse.Namespace) -> "Page":
    from tqdm import tqdm

    from gpt2np.explain import PROGRESS_STEPS, explain

    with tqdm(total=PROGRESS_STEPS, leave=False, disable=None, bar_format=_BAR) as bar:

        def tell(part: str) -> None:
            bar.set_description(part, refresh=False)
            bar.n += 1  # the number of the part that begins
            bar.refresh()

        return explain(
            lm,
            prompt,
            window=args.window,
            layer=args.layer,
            head=args.head,
            position=args.position,
            steps=args.steps,
            float64=not args.no_float64,
            on_progress=tell,
        )


_BAR = "{desc:<18}{bar:20} {n_fmt} of {total_fmt}, {elapsed}"


def _check_output(path: Path) -> None:
    """Refuse, before anything is computed, what can't be written to."""
    from tempfile import TemporaryFile

    if path.exists() and not path.is_file():
        raise InvalidArgumentError(f"-o {path} is not a file; name a file to write")
    if not path.parent.is_dir():
        raise InvalidArgumentError(f"-o {path}: there is no folder {path.parent}")
    with _told(path):
        TemporaryFile(dir=path.parent).close()  # what asks only for the rights is wrong for root


def _write(path: Path, html: str) -> None:
    from gpt2np.data.files import atomic_write_text

    with _told(path):
        atomic_write_text(path, html)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Raises GPT2NPError for an OSError."""
    try:
        yield
    except OSError as error:
        raise GPT2NPError(f"can't write -o {path}: {error.strerror}") from error
