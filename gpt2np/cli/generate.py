"""Continue a text.

The prompt and its continuation go to stdout as they are written; the model's
name, the seed and the speed go to stderr. The prompt is the argument, or a
file's content (--file), or standard input (-, or no argument and a pipe); of a
file and of standard input one newline at the end is dropped. A space at the
end of a prompt misleads the model, whose words begin with theirs.
"""

import argparse
import json
import signal
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2np.cli.streams import notice
from gpt2np.cli.text_input import argument, file_content, standard_input, without_newline
from gpt2np.errors import InvalidArgumentError
from gpt2np.threads import set_threads

if TYPE_CHECKING:
    from gpt2np.engine import Completion, LanguageModel, TextStream


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("prompt", nargs="?", metavar="PROMPT", help="the text to continue; - for standard input")
    add("--file", type=Path, metavar="FILE", help="read the prompt from a file (UTF-8)")
    add(
        "--model",
        metavar="MODEL",
        help="a Hugging Face id (gpt2, distilgpt2, openai-community/gpt2-medium, ..., with "
        "@REVISION for a branch, tag or commit), a folder, or 'bundled'; default: $GPT2NP_MODEL, "
        "else openai-community/gpt2 or, if that can't be had, the bundled model",
    )
    add(
        "-n",
        "--max-new-tokens",
        type=int,
        metavar="N",
        help="at most N, as far as the context reaches (default: 200)",
    )
    add("--greedy", action="store_true", help="always the likeliest token; same as --temperature 0")
    add("--temperature", type=float, metavar="T", help="0: greedy, higher: wilder (default: 0.8)")
    add("--top-k", type=int, metavar="K", help="among the K likeliest; 0: no limit (default: 40)")
    add("--top-p", type=float, metavar="P", help="among the likeliest that reach P (default: 1.0)")
    add("--seed", type=int, metavar="SEED", help="the same seed, the same text (default: random)")
    add(
        "--stop",
        action="append",
        metavar="TEXT",
        help="end before this text (a line's end: $'\\n'); may be given several times",
    )
    add("--no-echo", action="store_true", help="print the continuation without the prompt")
    add("--json", action="store_true", help="print one JSON object when all is done")
    add("--threads", type=int, metavar="N", help="threads for the matrix products (default: all)")
    add("--dtype", choices=("float32", "float64"), default="float32", help="default: float32")
    parser.epilog = (
        "Where the model's generation_config.json names a number of new tokens, a\n"
        "temperature, top-k or top-p, that is the default."
    )


def run(args: argparse.Namespace) -> int:
    """Generate and print; returns the exit code."""
    prompt = _prompt(args)
    set_threads(args.threads)
    from gpt2np.engine import LanguageModel

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lm = LanguageModel.load(args.model, args.dtype)
    stream = lm.stream(prompt, **_options(args))
    _announce(lm, stream)
    for told in (str(warning.message) for warning in caught):
        if not lm.notice or lm.notice not in told:  # that one has been announced
            notice(told)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on there is text to keep
    try:
        if not args.json:
            _print_stream(stream, "" if args.no_echo else prompt)
        else:
            for _ in stream:
                pass
        exit_code = 0
    except KeyboardInterrupt:
        rest = stream.cancel()
        if not args.json:
            print(rest, flush=True)
        exit_code = 130
    completion = stream.completion
    if args.json:
        print(json.dumps(_as_json(completion), ensure_ascii=False), flush=True)
    notice(_summary(completion, lm.model.config.n_positions))
    return exit_code


def _print_stream(stream: "TextStream", echo: str) -> None:
    sys.stdout.write(echo)
    sys.stdout.flush()
    for piece in stream:
        sys.stdout.write(piece)
        sys.stdout.flush()
    print(flush=True)


def _announce(lm: "LanguageModel", stream: "TextStream") -> None:
    why = f" ({lm.notice}; choose another with --model)" if lm.notice else ""
    notice(f"model: {lm.name}{why}")
    notice(f"seed: {stream.completion.seed}")


def _summary(completion: "Completion", context: int) -> str:
    full = len(completion.prompt_ids) + len(completion.ids) > context
    why = f" (the context of {context} tokens is full)" if full else ""
    return (
        f"{len(completion.ids)} tokens, {completion.tokens_per_second:.1f} tokens/s, "
        f"finish reason: {completion.finish_reason}{why}"
    )


def _as_json(completion: "Completion") -> dict[str, Any]:
    return {
        "prompt": completion.prompt,
        "prompt_ids": completion.prompt_ids,
        "text": completion.text,
        "ids": completion.ids,
        "finish_reason": completion.finish_reason,
        "seed": completion.seed,
        "model": completion.model,
        "tokens_per_second": round(completion.tokens_per_second, 2),
    }


def _options(args: argparse.Namespace) -> Any:
    if args.greedy and args.temperature:
        raise InvalidArgumentError("--greedy and --temperature contradict each other; give one")
    options = {
        "max_new_tokens": args.max_new_tokens,
        "temperature": 0.0 if args.greedy else args.temperature,
        "top_k": args.top_k,
        "top_p": args.top_p,
        "seed": args.seed,
        "stop": tuple(argument(text, "--stop") for text in args.stop) if args.stop else None,
    }
    return {name: value for name, value in options.items() if value is not None}


def _prompt(args: argparse.Namespace) -> str:
    if args.file is not None:
        if args.prompt is not None:
            raise InvalidArgumentError("give either PROMPT or --file, not both")
        return without_newline(file_content(args.file))
    if args.prompt == "-" or (args.prompt is None and not sys.stdin.isatty()):
        return standard_input("prompt")
    if args.prompt is None:
        raise InvalidArgumentError("no prompt; give PROMPT, --file FILE, or - for standard input")
    return argument(args.prompt, "PROMPT")
