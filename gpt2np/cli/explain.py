"""Write an HTML page that shows how a model processes a prompt.

The page has a picture of the forward pass that you can zoom into, the numbers
behind it, and how the prompt is split into tokens. It is one file, and needs
only a browser. A prompt of more than 64 tokens is an error.
"""

import argparse
from pathlib import Path

from gpt2np.cli.model_options import add_model_arguments, load_model
from gpt2np.cli.output import print_stderr
from gpt2np.cli.text_input import add_prompt_argument, read_prompt
from gpt2np.data.files import atomic_write_text, check_target
from gpt2np.errors import counted
from gpt2np.view.explain import explain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_prompt_argument(parser)
    output = parser.add_argument_group("Output").add_argument
    output("-o", "--output", type=Path, required=True, metavar="FILE", help="HTML file to write")
    output("--force", action="store_true", help="Overwrite FILE if it exists")
    add_model_arguments(parser, "weights")


def run(args: argparse.Namespace) -> int:
    prompt = read_prompt(args)
    check_target(args.output, (".html", ".htm"), force=args.force)
    page = explain(load_model(args), prompt)
    atomic_write_text(args.output, page.html)
    print_stderr(
        f"{counted(len(page.description['ids']), 'token')}, {len(page.html.encode()):,} bytes"
    )
    print(args.output, flush=True)
    return 0
