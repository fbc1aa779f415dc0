"""Generate text that continues a prompt.

Standard input is read if PROMPT is '-' or missing; one newline at its end is
removed. In GPT-2's vocabulary, a space belongs to the token of the following
word: do not end a prompt with a space.

Log probabilities (--logprobs, --prompt-logprobs) need --json.

The prompt and its continuation go to stdout while the model generates. The
model's name, the seed and the speed go to stderr.
"""

import argparse
import json

from gpt2np.cli.generation_options import add_generation_arguments, generation_options
from gpt2np.cli.model_options import add_model_arguments, load_model
from gpt2np.cli.output import print_stderr
from gpt2np.cli.text_input import add_prompt_argument, add_special_argument, read_prompt
from gpt2np.errors import GenerationInterrupted, InvalidArgumentError, counted, warn
from gpt2np.generation.completion import Completion, completion_as_json
from gpt2np.generation.streaming import TextStream
from gpt2np.generation.token_healing import prompt_notice
from gpt2np.language_model import LanguageModel
from gpt2np.tokenizer.normalizer import allowed_special, check_special


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "gpt2np generate [PROMPT] [options]"
    add_prompt_argument(parser)
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
    lm = load_model(args)
    resolved = lm.resolve_options(**options)
    check_special(prompt, lm.tokenizer.special_tokens, args.special)
    allowed = allowed_special(args.special)
    if notice := prompt_notice(prompt, resolved):
        warn(notice)
    exit_code = 0
    if resolved.num_return_sequences == resolved.num_beams == 1 and not args.json:
        stream = lm.stream(prompt, resolved, allowed_special=allowed)
        _print_seeds(stream.completion)
        exit_code = _write_stream(stream, "" if args.no_echo else prompt)
        completion = stream.completion
    else:
        try:
            completion = lm.generate(prompt, resolved, allowed_special=allowed)
        except GenerationInterrupted as interruption:
            completion, exit_code = interruption.completions[0], 130
        _print_seeds(completion)
        _print_completions(completion, lm, args)
    print_stderr(_summary(completion, lm.model.config.n_positions))
    return exit_code


def _write_stream(stream: TextStream, before: str) -> int:
    """Write a text while the model generates it, also after Ctrl-C; return the exit code."""
    exit_code = 0
    print(before, end="", flush=True)
    try:
        for piece in stream:
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        exit_code = 130
        print(stream.cancel(), end="", flush=True)
    finally:
        print(flush=True)  # also before the message of an error
    return exit_code


def _print_seeds(best: Completion) -> None:
    if best.options.temperature:
        seeds = [f"{completion.seed}" for completion in (best, *best.alternatives)]
        print_stderr(f"{'seeds' if seeds[1:] else 'seed'}: {', '.join(seeds)}")


def _print_completions(best: Completion, lm: LanguageModel, args: argparse.Namespace) -> None:
    for index, completion in enumerate([best, *best.alternatives]):
        if args.json:
            speed = round(completion.tokens_per_second, 2)
            content = completion_as_json(completion, lm.tokenizer, tokens_per_second=speed)
            print(json.dumps(content, ensure_ascii=False), flush=True)
        else:
            echo = "" if args.no_echo else completion.prompt
            print("---\n" if index else "", echo, completion.text, sep="", flush=True)


def _summary(best: Completion, context: int) -> str:
    """Describe the speed and the ends of the texts."""
    completions = [best, *best.alternatives]
    n_tokens = sum(len(completion.ids) for completion in completions)
    seconds = max(completion.seconds for completion in completions)
    reasons = ", ".join(dict.fromkeys(f"{c.finish_reason}" for c in completions))
    is_full = len(best.prompt_ids) + len(best.ids) > context
    suffix = f" (the context of {context} tokens is full)" if is_full else ""
    speed = n_tokens / seconds if seconds else 0
    return f"{counted(n_tokens, 'token')}, {speed:.1f} tokens/s, finish reason: {reasons}{suffix}"
