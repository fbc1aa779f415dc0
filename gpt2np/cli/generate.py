"""Continue a text.

The prompt and its continuation go to stdout as they are written; the model's
name, the seed and the speed go to stderr. The prompt is the argument, or a
file's content (--file), or standard input (-, or no argument and a pipe); of a
file and of standard input one newline at the end is dropped. A space at the
end of a prompt misleads the model, whose words begin with theirs.

With --prompts and --out many prompts are continued, each as it would be alone,
and written in their order as JSON Lines. An interrupted run goes on when the
command is repeated.
"""

import argparse
import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2np.cli.generation_options import (
    add_generation_arguments,
    options_as_typed,
    options_from,
    refuse_without_effect,
)
from gpt2np.cli.live_text import ctrl_c, write_live
from gpt2np.cli.many_prompts import run_prompts
from gpt2np.cli.model_and_prompt import (
    add_model_arguments,
    add_prompt_arguments,
    given_prompt,
    load_model,
)
from gpt2np.cli.streams import notice
from gpt2np.errors import InvalidArgumentError
from gpt2np.kernels.threads import set_threads

if TYPE_CHECKING:
    from gpt2np.generation.logprobs import TokenLogprob
    from gpt2np.language_model import Completion, LanguageModel, TextStream


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add_prompt_arguments(parser)
    add(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="many prompts: a .txt file with one on each line, or a .jsonl file with texts or "
        'objects such as {"prompt": "...", "max_new_tokens": 9}; needs --out',
    )
    add("--out", type=Path, metavar="FILE.jsonl", help="where the continuations of --prompts go")
    add("--force", action="store_true", help="replace the file of --out if it exists")
    add_model_arguments(parser)
    add(
        "--draft",
        metavar="MODEL",
        help="a smaller model of the same vocabulary, whose guesses are checked; same result, "
        "faster where they are right",
    )
    add("--no-echo", action="store_true", help="print the continuation without the prompt")
    add("--json", action="store_true", help="print a JSON object for each text when all is done")
    add(
        "--logprobs",
        type=int,
        metavar="K",
        help="in the JSON, log probabilities of each token and the K likeliest in its place",
    )
    add("--prompt-logprobs", type=int, metavar="K", help="the same for the prompt's tokens")
    add_generation_arguments(parser)
    parser.epilog = (
        "Where the model's generation_config.json names a number of new tokens, a\n"
        "temperature, top-k or another of these, that is the default."
    )


def run(args: argparse.Namespace) -> int:
    """Generate and print; returns the exit code."""
    if args.draft is not None and args.prompt_lookup:
        raise InvalidArgumentError("--draft and --prompt-lookup contradict each other; give one")
    if args.prompts is not None:
        set_threads(args.threads)  # before anything imports NumPy
        return run_prompts(args, options_from(args), _as_line)
    if args.out is not None:
        raise InvalidArgumentError("--out is for --prompts; one text goes to stdout")
    if args.force:
        raise InvalidArgumentError("--force is for --out FILE.jsonl")
    prompt, options = given_prompt(args), options_from(args)
    if not args.json and (args.logprobs is not None or args.prompt_logprobs is not None):
        raise InvalidArgumentError("--logprobs and --prompt-logprobs need --json, to be printed in")
    lm, told = load_model(args)
    with options_as_typed():
        return _continue(lm, told, prompt, options, args)


def _continue(
    lm: "LanguageModel",
    told: Sequence[str],
    prompt: str,
    options: Any,
    args: argparse.Namespace,
) -> int:
    searched = lm.resolve_options(**options).num_beams > 1
    refuse_without_effect(args, searched=searched)
    if searched:
        found, exit_code = lm.generate(prompt, **options), 0
        _announce(told, [])
        _print_all(found, args, prompt)
    else:
        streams = lm.streams(prompt, **options)
        _announce(told, [stream.completion.seed for stream in streams])
        found, exit_code = _written(streams, args, prompt)
    texts, context = [found, *found.alternatives], lm.model.config.n_positions
    notice(_summary(texts, context, bool(args.window)))
    if (args.choices or args.regex) and any(text.finish_reason == "length" for text in texts):
        notice("the text ended by its length, perhaps before it had its form; see -n")
    return exit_code


def completion_as_json(completion: "Completion") -> dict[str, Any]:
    """The object that --json prints."""
    content: dict[str, Any] = {
        "prompt": completion.prompt,
        "prompt_ids": completion.prompt_ids,
        "text": completion.text,
        "ids": completion.ids,
        "finish_reason": completion.finish_reason,
        "seed": completion.seed,
        "model": completion.model,
        "tokens_per_second": round(completion.tokens_per_second, 2),
    }
    if completion.logprobs is not None:
        content["logprobs"] = _logprobs(completion.logprobs)
    if completion.prompt_logprobs is not None:
        content["prompt_logprobs"] = _logprobs(completion.prompt_logprobs)
    return content


def _as_line(completion: "Completion") -> dict[str, Any]:
    """The same without what another run would not repeat."""
    content = completion_as_json(completion)
    del content["tokens_per_second"]
    return content


def _logprobs(given: Sequence["TokenLogprob | None"]) -> list[dict[str, Any] | None]:
    return [
        None if each is None else {"id": each.id, "logprob": each.logprob, "top": each.top}
        for each in given
    ]


def _written(
    streams: Sequence["TextStream"], args: argparse.Namespace, prompt: str
) -> tuple["Completion", int]:
    """Generate and print; what there is of it, also after Ctrl-C, and the exit code."""
    from gpt2np.generation.streaming import pick_best, run_streams

    signal.signal(signal.SIGINT, ctrl_c)  # from here on there is text to keep
    live = len(streams) == 1 and not args.json
    exit_code = 0
    try:
        if live:
            print("" if args.no_echo else prompt, end="", flush=True)
            write_live(streams[0])
        else:
            run_streams(streams)
    except KeyboardInterrupt:
        exit_code = 130
        for stream in streams:
            stream.cancel()
    found = pick_best(streams)
    if live:
        print(flush=True)
    else:
        _print_all(found, args, prompt)
    return found, exit_code


def _print_all(found: "Completion", args: argparse.Namespace, prompt: str) -> None:
    echo = "" if args.no_echo else prompt
    for number, completion in enumerate([found, *found.alternatives]):
        if args.json:
            print(json.dumps(completion_as_json(completion), ensure_ascii=False), flush=True)
        else:
            between = "---\n" if number else ""
            print(f"{between}{echo}{completion.text}", flush=True)


def _announce(told: Sequence[str], seeds: Sequence[int]) -> None:
    notice(told[0])
    if seeds:
        notice(f"seeds: {seeds[0]} to {seeds[-1]}" if seeds[1:] else f"seed: {seeds[0]}")
    for line in told[1:]:
        notice(line)


def _summary(completions: Sequence["Completion"], context: int, window: bool) -> str:
    tokens = sum(len(completion.ids) for completion in completions)
    seconds = max(completion.seconds for completion in completions)
    reasons = ", ".join(str(completion.finish_reason) for completion in completions)
    first = completions[0]
    full = not window and len(first.prompt_ids) + len(first.ids) > context
    why = f" (the context of {context} tokens is full)" if full else ""
    return (
        f"{tokens} tokens, {tokens / seconds if seconds else 0:.1f} tokens/s, "
        f"finish reason: {reasons}{why}"
    )
