"""Chat with a model in the terminal.

A model with a chat template answers your messages. A base model, such as GPT-2,
has no template: you and the model take turns writing one text. An empty line
lets the model write more. A line that starts with / is a command; /help lists
the commands. Ctrl-C stops an answer, and Ctrl-D exits.

Answers go to stdout, everything else to stderr. The ">>> " before your input
appears only if you type the input at a terminal.
"""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpt2np.chat import ChatSession, read_chat_template
from gpt2np.chat.commands import QUIT, RETRY, read_input, run_command, without_fences
from gpt2np.cli.generation_options import add_generation_arguments, generation_options
from gpt2np.cli.model_options import add_model_arguments, load_model
from gpt2np.cli.output import print_stderr
from gpt2np.data.text import decode_utf8
from gpt2np.errors import GPT2NPError
from gpt2np.generation.options import ONE_TEXT_ONLY


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "gpt2np chat [options]"
    add = parser.add_argument
    add("--system", metavar="TEXT", help="System message; needs a chat template")
    template = "Jinja file to use instead of the model's chat template"
    add("--chat-template", type=Path, metavar="FILE", help=template)
    add_generation_arguments(parser, omit=ONE_TEXT_ONLY)
    add_model_arguments(parser, "dtype", "exact", "weights", "processes", "draft")


def run(args: argparse.Namespace) -> int:
    """Process messages and commands until /quit or EOF; return 1 after an error in a pipe."""
    session = _create_session(args, generation_options(args))
    if is_terminal := sys.stdin.isatty():
        with contextlib.suppress(ImportError):  # not available on Windows
            import readline  # noqa: F401 (adds line editing and history to input())
    exit_code, is_open = 0, True
    while is_open:
        try:
            text = read_input(_read_line)
            is_open = text is not None and _process(session, text)
        except KeyboardInterrupt:
            if not is_terminal:
                raise
            print_stderr("\n(press Ctrl-D or type /quit to exit)")
        except GPT2NPError as error:
            print_stderr(f"error: {error}")
            exit_code = 0 if is_terminal else 1
    return exit_code


def _create_session(args: argparse.Namespace, options: dict[str, Any]) -> ChatSession:
    lm = load_model(args)
    lm.resolve_options(**options)  # an error now, not at the first message
    assert lm.folder is not None
    roles = lm.tokenizer.vocabulary.special_tokens_map
    template = read_chat_template(lm.folder, roles, file=args.chat_template)
    session = ChatSession(lm, template, system=args.system, options=options)
    kind = f"chat template: {template.origin}" if template else "base model: it continues your text"
    print_stderr(f"{kind}; /help lists the commands")
    return session


def _process(session: ChatSession, text: str) -> bool:
    """Answer a message or run a slash command. Returns False for /quit, else True."""
    if not text.startswith("/"):
        text = without_fences(text)
        if text or session.template is None:
            _write_answer(session, session.say(text))
        return True
    result = run_command(session, text)
    if result == RETRY:
        _write_answer(session, session.retry())
    elif result != QUIT:
        print_stderr(result)
    return result != QUIT


def _write_answer(session: ChatSession, pieces: Iterator[str]) -> None:
    """Write an answer to stdout while the model generates it; Ctrl-C ends the answer early."""
    with contextlib.closing(pieces):  # type: ignore[type-var]  # a generator
        try:
            for piece in pieces:
                print(piece, end="", flush=True)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
        finally:
            print(flush=True)
    if session.left_out:
        print_stderr(f"(the context is full: the first {session.left_out} messages are left out)")
    if session.template and session.completion and session.completion.finish_reason == "length":
        print_stderr("(the answer reached the token limit; /set max_new_tokens N raises it)")


def _read_line(is_continuation: bool) -> str | None:
    """Read a line of the input; None at its end. The prompt never goes into redirected answers."""
    prompt = "... " if is_continuation else ">>> "
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print(prompt if sys.stdin.isatty() else "", end="", file=sys.stderr, flush=True)
        prompt = ""
    try:
        return decode_utf8(input(prompt).encode(errors="surrogateescape"), "standard input")
    except EOFError:
        return None
