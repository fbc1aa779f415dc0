"""Generate text that continues a prompt.

The prompt is PROMPT, the content of --file, or standard input, which is read if
PROMPT or --file is '-', or if neither is given. In GPT-2's vocabulary, a space
belongs to the token of the following word: do not end a prompt with a space.

The prompt and its continuation go to stdout while the model generates. The
model's name, the seed and the speed go to stderr.
"""

import argparse
import json
import warnings

from gpt2np.cli.generation_options import add_generation_arguments, generation_options
from gpt2np.cli.model_options import add_model_arguments, load_model, resolve_before_loading
from gpt2np.cli.output import print_stderr
from gpt2np.cli.text_input import add_prompt_arguments, add_special_argument, read_prompt
from gpt2np.errors import InvalidArgumentError, counted
from gpt2np.generation.complete import join_continuations
from gpt2np.generation.completion import Completion, prompt_notice
from gpt2np.generation.completion_json import completion_as_json
from gpt2np.generation.options import GenerationOptions
from gpt2np.generation.streaming import TextStream
from gpt2np.language_model import LanguageModel
from gpt2np.tokenizer.normalizer import allowed_special, check_special


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "gpt2np generate [PROMPT] [options]"
    add_prompt_arguments(parser)
    no_echo = "Print the continuation without the prompt"
    parser.add_argument("--no-echo", action="store_true", help=no_echo)
    add_special_argument(parser)
    parser.add_argument("--json", action="store_true", help="Print each text as a JSON object")
    add_generation_arguments(parser)
    add_model_arguments(parser, "dtype", "exact", "weights", "processes", "draft")


def run(args: argparse.Namespace) -> int:
    prompt, options = read_prompt(args), generation_options(args)
    if not args.json and (args.logprobs is not None or args.prompt_logprobs is not None):
        raise InvalidArgumentError("--logprobs and --prompt-logprobs need --json")
    resolved = resolve_before_loading(args, options)
    lm = load_model(args)
    check_special(prompt, lm.tokenizer.special_tokens, args.special)
    allowed = allowed_special(args.special)
    if not prompt:
        print_stderr("the prompt is empty; the text starts from the end-of-text token")
    if notice := prompt_notice(prompt, resolved):
        warnings.warn(notice, stacklevel=2)
    exit_code = 0
    if resolved.num_beams > 1:
        completion = lm.generate(prompt, resolved, allowed_special=allowed)
        _print_completions(completion, lm, args)
    else:
        streams = lm.streams(prompt, resolved, allowed_special=allowed)
        completion, exit_code = _run_streams(streams, lm, resolved, args)
    print_stderr(_summary(completion, lm.model.config.n_positions, resolved))
    return exit_code


def _run_streams(
    streams: list[TextStream],
    lm: LanguageModel,
    options: GenerationOptions,
    args: argparse.Namespace,
) -> tuple[Completion, int]:
    """Generate and print texts, even after Ctrl-C; return the best text and the exit code."""
    is_live, exit_code = len(streams) == 1 and not args.json, 0
    _print_seeds([stream.completion for stream in streams], options)
    try:
        if is_live:
            print("" if args.no_echo else streams[0].completion.prompt, end="", flush=True)
        for stream in streams:
            for piece in stream:
                print(piece if is_live else "", end="", flush=True)
    except KeyboardInterrupt:
        exit_code = 130
        rest = "".join([stream.cancel() for stream in streams])
        print(rest if is_live else "", end="", flush=True)
    completion = join_continuations([stream.sequence for stream in streams])
    if is_live:
        print(flush=True)
    else:
        _print_completions(completion, lm, args)
    return completion, exit_code


def _print_seeds(completions: list[Completion], options: GenerationOptions) -> None:
    if options.temperature:
        seeds = ", ".join(f"{completion.seed}" for completion in completions)
        print_stderr(f"{'seeds' if completions[1:] else 'seed'}: {seeds}")


def _print_completions(best: Completion, lm: LanguageModel, args: argparse.Namespace) -> None:
    for index, completion in enumerate([best, *best.alternatives]):
        if args.json:
            speed = round(completion.tokens_per_second, 2)
            content = completion_as_json(completion, lm.tokenizer, tokens_per_second=speed)
            print(json.dumps(content, ensure_ascii=False), flush=True)
        else:
            echo = "" if args.no_echo else completion.prompt
            print("---\n" if index else "", echo, completion.text, sep="", flush=True)


def _summary(best: Completion, context: int, options: GenerationOptions) -> str:
    """Describe the speed and the ends of the texts."""
    completions = [best, *best.alternatives]
    n_tokens = sum(len(completion.ids) for completion in completions)
    seconds = max(completion.seconds for completion in completions)
    reasons = ", ".join(str(completion.finish_reason) for completion in completions)
    is_full = len(best.prompt_ids) + len(best.ids) > context
    suffix = f" (the context of {context} tokens is full)" if is_full else ""
    if "time" in reasons and (options.choices or options.regex or options.json_schema):
        suffix = " (the text is incomplete; increase --max-time)"
    speed = n_tokens / seconds if seconds else 0
    return f"{counted(n_tokens, 'token')}, {speed:.1f} tokens/s, finish reason: {reasons}{suffix}"
