"""Generate text that continues a prompt.

The prompt is PROMPT, the content of --file, or standard input. Standard input
is read if PROMPT or --file is '-', or if neither is given and standard input is
not a terminal. One newline at the end of the file or of standard input is
removed. In GPT-2's vocabulary, a space belongs to the token of the following
word: do not end a prompt with a space.

The prompt and its continuation go to stdout while the model generates. The
model's name, the seed and the speed go to stderr.
"""

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpt2np.cli.generation_options import (
    add_generation_arguments,
    generation_options,
)
from gpt2np.cli.model_options import add_model_arguments, load_quietly
from gpt2np.cli.output import print_stderr, write_stream
from gpt2np.cli.text_input import add_prompt_arguments, read_prompt
from gpt2np.errors import InvalidArgumentError, counted
from gpt2np.kernels.threads import set_threads

if TYPE_CHECKING:
    from gpt2np.language_model import Completion, LanguageModel, TextStream
    from gpt2np.tokenizer import Tokenizer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_prompt_arguments(parser)
    output = add_generation_arguments(parser)["Output"]
    add = output.add_argument
    add("--no-echo", action="store_true", help="Print the continuation without the prompt")
    as_json = "Print each text as a JSON object; --logprobs and --prompt-logprobs need --json"
    add("--json", action="store_true", help=as_json)
    add_model_arguments(parser, "dtype", "exact", "weights", "processes", "draft")
    parser.epilog = (
        "The model's generation_config.json overrides the defaults shown above.\n"
        "An option on the command line overrides generation_config.json."
    )


def run(args: argparse.Namespace) -> int:
    set_threads(args.threads)  # must come before NumPy is imported
    prompt, options = read_prompt(args), generation_options(args)
    if not args.json and (args.logprobs is not None or args.prompt_logprobs is not None):
        raise InvalidArgumentError("--logprobs and --prompt-logprobs need --json")
    lm, messages = load_quietly(args)
    return _generate(lm, messages, prompt, options, args)


def _generate(
    lm: "LanguageModel", messages: list[str], prompt: str, options: Any, args: argparse.Namespace
) -> int:
    """Generate and print texts that continue one prompt; return the exit code."""
    from gpt2np.generation.notices import prompt_notice

    if not prompt:
        messages = [*messages, "the prompt is empty; the text starts from the end-of-text token"]
    resolved = lm.resolve_options(**options)
    if notice := prompt_notice(prompt, resolved):
        messages = [*messages, notice]
    beam_search = resolved.num_beams > 1
    if beam_search:
        completion, exit_code = lm.generate(prompt, **options), 0
        _print_messages(messages, [])
        _print_completions(completion, lm.tokenizer, args, prompt)
    else:
        streams = lm.streams(prompt, **options)
        is_ranked = resolved.best_of is not None
        seeds = [stream.completion.seed for stream in streams]
        _print_messages(messages, seeds if resolved.temperature and not is_ranked else [])
        completion, exit_code = _run_streams(streams, lm.tokenizer, args, prompt)
        if is_ranked and resolved.temperature:
            ranked = [f"{c.seed}" for c in (completion, *completion.alternatives)]
            print_stderr(f"{'seeds' if ranked[1:] else 'seed'}: {', '.join(ranked)}")
    completions = [completion, *completion.alternatives]
    print_stderr(_summary(completions, lm.model.config.n_positions, bool(args.window)))
    if (args.choices or args.regex or args.json_schema) and any(
        c.finish_reason == "time" for c in completions
    ):
        print_stderr("the time limit ended the text before it was complete; increase --max-time")
    return exit_code


def _run_streams(
    streams: Sequence["TextStream"], tokenizer: "Tokenizer", args: argparse.Namespace, prompt: str
) -> tuple["Completion", int]:
    """Generate and print texts, even after Ctrl-C; return the best text and the exit code."""
    from gpt2np.generation.complete import pick_best

    is_live = len(streams) == 1 and not args.json
    exit_code = 0
    try:
        if is_live:
            print("" if args.no_echo else prompt, end="", flush=True)
            write_stream(streams[0])
        else:
            for stream in streams:
                "".join(stream)
    except KeyboardInterrupt:
        exit_code = 130
        for stream in streams:
            stream.cancel()
    completion = pick_best([stream.sequence for stream in streams])
    if is_live:
        print(flush=True)
    else:
        _print_completions(completion, tokenizer, args, prompt)
    return completion, exit_code


def _print_messages(messages: Sequence[str], seeds: Sequence[int]) -> None:
    print_stderr(messages[0])
    if seeds:
        print_stderr(f"seeds: {seeds[0]} to {seeds[-1]}" if seeds[1:] else f"seed: {seeds[0]}")
    for message in messages[1:]:
        print_stderr(message)


def _print_completions(
    best: "Completion", tokenizer: "Tokenizer", args: argparse.Namespace, prompt: str
) -> None:
    from gpt2np.prompts.rows import completion_as_json

    echo = "" if args.no_echo else prompt
    for index, completion in enumerate([best, *best.alternatives]):
        if args.json:
            speed = round(completion.tokens_per_second, 2)
            content = completion_as_json(completion, tokenizer, tokens_per_second=speed)
            print(json.dumps(content, ensure_ascii=False), flush=True)
        else:
            separator = "---\n" if index else ""
            print(f"{separator}{echo}{completion.text}", flush=True)


def _summary(completions: Sequence["Completion"], context: int, window: bool) -> str:
    n_tokens = sum(len(completion.ids) for completion in completions)
    seconds = max(completion.seconds for completion in completions)
    reasons = ", ".join(str(completion.finish_reason) for completion in completions)
    first = completions[0]
    is_full = not window and len(first.prompt_ids) + len(first.ids) > context
    suffix = f" (the context of {context} tokens is full)" if is_full else ""
    return (
        f"{counted(n_tokens, 'token')}, {n_tokens / seconds if seconds else 0:.1f} tokens/s, "
        f"finish reason: {reasons}{suffix}"
    )
