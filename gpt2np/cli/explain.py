"""Write an HTML page that shows how a model processes a prompt.

The page shows every step: tokens and vectors, one block in detail, logits, and
the sampling of the next token. Further sections show the logit lens, the KV
cache, all tensors, timings, and the difference between float32 and float64. The
page is one file and needs only a browser.

A page shows at most 64 tokens. For a longer prompt, --window selects the tokens
to process and show.
"""

import argparse
from pathlib import Path

from gpt2np.cli.model_options import add_model_arguments, load_quietly
from gpt2np.cli.output import print_stderr, step_bar, write_errors
from gpt2np.cli.text_input import add_prompt_arguments, read_prompt
from gpt2np.data.files import atomic_write_text, check_output_file
from gpt2np.errors import InvalidArgumentError, check_argument, counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_prompt_arguments(parser)
    window = "Process and show only tokens START to STOP - 1 of the prompt, counted from 0"
    add("--window", type=_parse_window, metavar="START:STOP", help=window)
    layer = "Block to show in detail, counted from 0 (default: the middle block)"
    add("--layer", type=int, metavar="L", help=layer)
    head = "Attention head to show alone, counted from 0 (default: all heads)"
    add("--head", type=int, metavar="H", help=head)
    position = "Token to show in detail, counted from 0 in the window (default: last)"
    add("--position", type=int, metavar="T", help=position)
    steps = "Number of tokens to generate (default: 8)"
    add("-n", "--steps", type=int, default=8, metavar="N", help=steps)
    output = parser.add_argument_group("Output").add_argument
    file = "HTML file to write, or '-' to write to standard output"
    output("-o", "--output", type=Path, required=True, metavar="FILE", help=file)
    output("--force", action="store_true", help="Overwrite FILE if it exists")
    performance = add_model_arguments(parser, "weights")
    no_float64 = "Omit the comparison with float64, which needs a float64 copy of the model"
    performance.add_argument("--no-float64", action="store_true", help=no_float64)


def _parse_window(text: str) -> slice:
    start, colon, stop = text.partition(":")
    if not colon or not all(part == "" or part.isdecimal() for part in (start, stop)):
        raise argparse.ArgumentTypeError(f"{text!r} is not START:STOP, as in 0:64")
    return slice(int(start or 0), int(stop) if stop else None)


def run(args: argparse.Namespace) -> int:
    prompt = read_prompt(args)
    check_argument(args.steps >= 1, "steps", args.steps, "at least 1")
    is_stdout = args.output == Path("-")
    if is_stdout and args.force:
        raise InvalidArgumentError("--force has no effect on standard output; leave it out")
    if not is_stdout:
        check_output_file(args.output, overwrite=args.force, inputs=[args.file])
        is_html = args.output.suffix.lower() in (".html", ".htm")
        check_argument(is_html, "output", f"{args.output}", "a name that ends in .html, or -")
    lm, messages = load_quietly(args)
    from gpt2np.explain.page import PROGRESS_STEPS, explain

    with step_bar(PROGRESS_STEPS, width=18) as start_step:
        page = explain(
            lm,
            prompt,
            window=args.window,
            layer=args.layer,
            head=args.head,
            position=args.position,
            steps=args.steps,
            float64=not args.no_float64,
            on_progress=start_step,
        )
    for message in messages:
        print_stderr(message)
    if not is_stdout:
        with write_errors(args.output):
            atomic_write_text(args.output, page.html)
    print_stderr(f"{counted(len(page.run.ids), 'token')}, {len(page.html.encode()):,} bytes")
    print(page.html if is_stdout else args.output, end="" if is_stdout else "\n", flush=True)
    return 0
