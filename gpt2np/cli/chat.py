"""Talk with a model, line by line.

A model with a chat template answers. Any other, such as GPT-2 itself, is a base
model: it continues the text that you and it write in turn; an empty line lets
it go on. Lines that begin with / are commands: /help lists them. Ctrl-C stops
an answer, Ctrl-D ends the program. Answers go to stdout, all else to stderr;
when lines come from a file or a pipe, there are no prompts.
"""

import argparse
import contextlib
import signal
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2np.cli.generation_options import add_generation_arguments, options_as_typed, options_from
from gpt2np.cli.live_text import ctrl_c, write_live
from gpt2np.cli.model_and_prompt import add_model_arguments
from gpt2np.cli.streams import notice
from gpt2np.cli.text_input import argument, decoded, without_newline
from gpt2np.errors import GPT2NPError
from gpt2np.kernels.threads import set_threads, thread_count

if TYPE_CHECKING:
    from gpt2np.chat import ChatSession
    from gpt2np.chat.entry import Entry, ReadLine
    from gpt2np.generation.streaming import TextStream

_PROMPT, _CONTINUED = ">>> ", "... "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add_model_arguments(parser)
    add("--system", metavar="TEXT", help="what a model with a chat template is told beforehand")
    add("--chat-template", type=Path, metavar="FILE", help="a Jinja file instead of the model's")
    add_generation_arguments(parser, several=False)


def run(args: argparse.Namespace) -> int:
    """Read lines, answer them; returns the exit code."""
    options = options_from(args)
    set_threads(args.threads)
    session = _session(args, options)
    signal.signal(signal.SIGINT, ctrl_c)
    if not sys.stdin.isatty():
        return _talk(session, _piped_line)
    with contextlib.suppress(ImportError):  # as on Windows
        import readline  # noqa: F401 (from here on input() edits lines and remembers them)
    _talk(session, _terminal_line)
    return 0


def _session(args: argparse.Namespace, options: Any) -> "ChatSession":
    from gpt2np.chat import ChatSession, ChatTemplate, read_chat_template
    from gpt2np.chat.template import read_template_file
    from gpt2np.hub import find_model
    from gpt2np.language_model import LanguageModel

    source = find_model(args.model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lm = LanguageModel.load(source.folder, args.dtype, processes=thread_count())
    lm.name = source.name
    template: ChatTemplate | None
    roles = lm.tokenizer.vocabulary.special_tokens_map
    if args.chat_template is None:
        template = read_chat_template(source.folder, roles)
    else:
        text = read_template_file(args.chat_template)
        template = ChatTemplate(text, roles, str(args.chat_template))
    system = None if args.system is None else argument(args.system, "--system")
    with options_as_typed():
        session = ChatSession(lm, template, system=system, options=options)
    why = (
        f" ({source.fallback_reason}; choose another with --model)"
        if source.fallback_reason
        else ""
    )
    notice(f"model: {lm.name}{why}")
    for warning in caught:
        notice(str(warning.message))
    if template is None:
        notice("this is a base model: it continues your text; /help lists the commands")
    else:
        notice(f"chat template: {template.origin}; /help lists the commands")
    return session


def _talk(session: "ChatSession", read_line: "ReadLine") -> int:
    """Until the input ends, or /quit. The exit code is 1 if something couldn't be done."""
    from gpt2np.chat.entry import read_entry

    exit_code, going = 0, True
    while going:
        try:
            entry = read_entry(read_line)
            going = entry is not None and _do(session, entry)
        except KeyboardInterrupt:
            if read_line is _piped_line:
                raise
            notice("\n(Ctrl-D or /quit ends)")
        except GPT2NPError as error:
            notice(f"error: {error}")
            exit_code = 1
    return exit_code


def _do(session: "ChatSession", entry: "Entry") -> bool:
    """Answer a text or obey a command; False if that is to end."""
    from gpt2np.chat.commands import QUIT, RETRY, command

    if not entry.is_command:
        if entry.text or session.template is None:
            _write(session, session.say(entry.text))
        return True
    told = command(session, entry.text)
    if told == RETRY:
        _write(session, session.retry())
    elif told != QUIT:
        notice(told)
    return told != QUIT


def _write(session: "ChatSession", stream: "TextStream") -> None:
    """An answer as it comes; Ctrl-C ends it, and what there is of it is shown and counts."""
    try:
        write_live(stream)
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
    finally:
        session.finish(stream)
        print(flush=True)
    if session.left_out:
        notice(f"(no room in the context for the first {session.left_out} exchanges)")
    if stream.sequence.context_start:
        window = stream.sequence.options.window
        notice(f"(the context is full: only the last {window} tokens counted)")
    if session.cut_at is not None:
        notice(f"(the answer spells {session.cut_at}; what stands before it counts)")
    if session.template and stream.completion.finish_reason == "length":
        notice("(the answer ended by its length; /set max_new_tokens N allows more)")


def _terminal_line(goes_on: bool) -> str | None:
    prompt = _CONTINUED if goes_on else _PROMPT
    try:
        if sys.stdout.isatty():
            return argument(input(prompt), "the line")
        sys.stderr.write(prompt)  # stdout is for answers, and input() would write there
        sys.stderr.flush()
        line = sys.stdin.readline()
        return argument(without_newline(line), "the line") if line else None
    except EOFError:
        notice("")
        return None


def _piped_line(goes_on: bool) -> str | None:
    line = sys.stdin.buffer.readline()
    return without_newline(decoded(line, "standard input")) if line else None
