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
from typing import TYPE_CHECKING, Any

from gpt2np.cli.generation_options import add_generation_arguments, generation_options
from gpt2np.cli.model_options import add_model_arguments, load_quietly
from gpt2np.cli.output import print_stderr
from gpt2np.cli.text_input import decode_argument, strip_newline
from gpt2np.data.text import decode_utf8
from gpt2np.errors import GPT2NPError
from gpt2np.generation.options import ONE_TEXT_ONLY
from gpt2np.kernels.threads import set_threads

if TYPE_CHECKING:
    from gpt2np.chat import ChatSession
    from gpt2np.chat.commands import ChatInput, ReadLine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--system", metavar="TEXT", help="System message; needs a chat template")
    template = "Jinja file to use instead of the model's chat template"
    add("--chat-template", type=Path, metavar="FILE", help=template)
    add_generation_arguments(parser, omit=ONE_TEXT_ONLY)
    add_model_arguments(parser, "dtype", "exact", "weights", "processes", "draft")


def run(args: argparse.Namespace) -> int:
    set_threads(args.threads)  # must come before NumPy is imported
    options = generation_options(args)
    session = _create_session(args, options)
    if not sys.stdin.isatty():
        return _chat(session, _read_piped_line)
    with contextlib.suppress(ImportError):  # not available on Windows
        import readline  # noqa: F401 (adds line editing and history to input())
    # Drafts are imported before the first answer: Ctrl-C during an import ends the program.
    import gpt2np.generation.speculation  # noqa: F401

    _chat(session, _read_terminal_line)
    return 0


def _create_session(args: argparse.Namespace, options: Any) -> "ChatSession":
    lm, messages = load_quietly(args)
    assert lm.folder is not None
    from gpt2np.chat import ChatSession, read_chat_template

    roles = lm.tokenizer.vocabulary.special_tokens_map
    template = read_chat_template(lm.folder, roles, file=args.chat_template)
    system = None if args.system is None else decode_argument(args.system, "--system")
    session = ChatSession(lm, template, system=system, options=options)
    for message in messages:
        print_stderr(message)
    if template is None:
        print_stderr("base model: it continues your text; /help lists the commands")
    else:
        print_stderr(f"chat template: {template.origin}; /help lists the commands")
    return session


def _chat(session: "ChatSession", read_line: "ReadLine") -> int:
    """Process messages and commands until /quit or EOF; return 1 after an error, else 0."""
    from gpt2np.chat.commands import read_input

    exit_code, is_open = 0, True
    while is_open:
        try:
            chat_input = read_input(read_line)
            is_open = chat_input is not None and _process(session, chat_input)
        except KeyboardInterrupt:
            if read_line is _read_piped_line:
                raise
            print_stderr("\n(press Ctrl-D or type /quit to exit)")
        except GPT2NPError as error:
            print_stderr(f"error: {error}")
            exit_code = 1
    return exit_code


def _process(session: "ChatSession", chat_input: "ChatInput") -> bool:
    """Answer a message or run a slash command. Returns False for /quit, else True."""
    from gpt2np.chat.commands import QUIT, RETRY, run_command

    if not chat_input.is_command:
        if chat_input.text or session.template is None:
            _write_answer(session, session.say(chat_input.text))
        return True
    result = run_command(session, chat_input.text)
    if result == RETRY:
        _write_answer(session, session.retry())
    elif result != QUIT:
        print_stderr(result)
    return result != QUIT


def _write_answer(session: "ChatSession", pieces: "Iterator[str]") -> None:
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


def _read_terminal_line(is_continuation: bool) -> str | None:
    prompt = "... " if is_continuation else ">>> "
    try:
        if sys.stdout.isatty():
            return decode_argument(input(prompt), "the line")
        sys.stderr.write(prompt)  # input() would write the prompt to stdout, among the answers
        sys.stderr.flush()
        line = sys.stdin.readline()
        return decode_argument(strip_newline(line), "the line") if line else None
    except EOFError:
        print_stderr("")
        return None


def _read_piped_line(is_continuation: bool) -> str | None:
    line = sys.stdin.buffer.readline()
    return strip_newline(decode_utf8(line, "standard input")) if line else None
