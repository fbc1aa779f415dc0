"""Write the reference pages that follow from the code: commands, options and limits.

python docs/generate.py            writes commands.md, commands/, options.md, request_fields.md, and
                                   the table in limits.md
python docs/generate.py --check    exits with 1 if a page is out of date
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path

from gpt2np.cli import main as cli
from gpt2np.cli.declared_options import parser_flags
from gpt2np.generation import GenerationOptions
from gpt2np.limits import Limits
from gpt2np.options import meaning, options_of

REFERENCE = Path(__file__).parent / "reference"
NOTE = "<!-- Written by docs/generate.py; do not edit. -->\n"


def escape(text: str) -> str:
    """Escape the characters that have a meaning in Markdown; options become code."""
    text = re.sub(r"(`[^`]+`)|(?<![\w-])(--[a-z][a-z-]*)", lambda m: m[1] or f"`{m[2]}`", text)
    parts = re.split(r"(`[^`]+`)", text)
    parts[::2] = [re.sub(r"([\\*_<>\[\]|`~$])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def paragraphs(description: str) -> Iterator[str]:
    """Yield the paragraphs of a description; tables become code blocks."""
    for part in re.split(r"\n\n+", description.strip()):
        is_table = any(re.search(r"^ |\S {2,}\S", line) for line in part.splitlines())
        yield f"```text\n{part}\n```" if is_table else escape(" ".join(part.split()))


def option_names(action: argparse.Action) -> str:
    """Return an option with its argument, as in `-n N`, or the name of an argument."""
    metavar = action.metavar or (
        "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    )
    if not action.option_strings:
        return f"`{metavar}`"
    value = "" if action.nargs == 0 else f" {metavar}"
    return ", ".join(f"`{option}{value}`" for option in action.option_strings)


def command_text(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    """Yield the blocks that describe a command and its subcommands."""
    yield f"{'#' * level} {parser.prog}"
    yield from paragraphs(parser.description or "")
    for group in parser._action_groups:
        shown = [a for a in group._group_actions if a.help != argparse.SUPPRESS]
        subcommands = [a for a in shown if isinstance(a, argparse._SubParsersAction)]
        options = [a for a in shown if a not in subcommands and a.dest != "help"]
        if options:
            yield f"**{escape(group.title or 'Options')}**"
            for action in options:
                text = " ".join((action.help or "").replace("%%", "%").split())
                yield f"{option_names(action)}\n: {escape(text)}"
        for action in subcommands:
            for subparser in dict.fromkeys(action.choices.values()):
                yield from command_text(subparser, level + 1)
    if parser.epilog:
        yield escape(parser.epilog)


def command_pages() -> Iterator[tuple[str, str]]:
    """Yield a page for each command, made from the parser that prints `--help`, and their table."""
    modules = {name: import_module(f"gpt2np.cli.{name.replace('-', '_')}") for name in cli.COMMANDS}
    parser = cli._create_parser(modules)
    table = [
        "# Commands",
        NOTE.strip(),
        "All commands print the result to stdout and everything else to stderr. The exit code is 0 "
        "for success, 1 if the work could not be done, 2 for wrong usage, and 130 after Ctrl-C. "
        "If a path is not UTF-8, an invalid byte such as 0xff is printed as `\\udcff`. Python can "
        "restore the path from JSON output. `gpt2np --version` shows the version. There is no "
        "shell completion.",
        "| command | |\n|---|---|",
    ]
    (group,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    for name, subparser in group.choices.items():
        blocks = list(command_text(subparser, 1))
        yield f"commands/{name}.md", "\n\n".join([blocks[0], NOTE.strip(), *blocks[1:]]) + "\n"
        summary = escape((subparser.description or "").partition("\n\n")[0].replace("\n", " "))
        table[-1] += f"\n| [{name}](commands/{name}.md) | {summary} |"
    names = "\n".join(f"commands/{name}" for name in group.choices)
    yield "commands.md", "\n\n".join([*table, f"```{{toctree}}\n:hidden:\n\n{names}\n```"]) + "\n"


def options_page() -> str:
    """Return the page of the generation options, made from their declarations."""
    parser = argparse.ArgumentParser(add_help=False)
    import_module("gpt2np.cli.generate").add_arguments(parser)
    flags = {name: flag for name, flag in parser_flags(parser).items() if name != "draft"}
    lines = [
        "# Generation options",
        NOTE.strip(),
        "Each option is a keyword argument of `LanguageModel.generate` and similar methods, and a "
        "field of `GenerationOptions`. In a file of prompts (`--prompts`), the names are keys of "
        "the JSON objects. The flag after a name, such as `--top-k`, sets the option in the "
        "command `gpt2np generate`. For an option whose value is a list, give the flag once for "
        "each item. [HTTP requests](request_fields.md) support most of these options, some under "
        "other names.",
        "A value out of its range causes an error that names the option and the range. In the "
        "descriptions, N, X, TEXT and ID stand for the option's value. There are two aliases: "
        "`stop_strings` for `stop`, and `do_sample=False` for `temperature=0`. Log probabilities "
        "are computed from the model's logits before temperature, penalties and filters change "
        "the logits.",
    ]
    group = ""
    for name, option in options_of(GenerationOptions).items():
        if option.group != group:
            group = option.group
            lines.append(f"## {group}")
        flag = f", `{flags[name]}`" if name in flags else ""
        text = escape(meaning(GenerationOptions, name))
        lines.append(f"`{name} = {option.default!r}`{flag}\n: {text}")
    return "\n\n".join(lines) + "\n"


PARTIAL = {
    "suffix": 'refused (except `""`)',
    "tools": 'ignored if `tool_choice` is `"none"`; otherwise refused (except `[]`)',
    "tool_choice": "no effect, except on the treatment of `tools`",
    "response_format": "supported with the types `text`, `json_object` and `json_schema`; refused "
    "with other types",
    "structured_outputs": "supported with the keys `regex`, `choice`, `json` and `json_object`; "
    "refused with other keys",
    "stream_options": "supported if `stream` is `true`, otherwise refused; the key `include_usage` "
    "is supported, and the key `continuous_usage_stats` must be `false` or absent",
    "skip_special_tokens": "refused (except `true`)",
    "include_stop_str_in_output": "refused (except `false`)",
    "use_beam_search": "supported; the number of beams is `best_of` if given, otherwise `n`, but "
    "at least 2; `true` is refused if `stream` is `true`, or if the "
    "request has `interventions`",
    "prompt_logprobs": "supported; if `stream` is `true`, any number is refused, even `0`",
    "best_of": "supported; if `stream` is `true`, `best_of` must equal `n`",
    "max_tokens": "supported; option `max_new_tokens`; in chat, `max_completion_tokens` takes "
    "precedence",
    "max_completion_tokens": "supported; option `max_new_tokens`",
    "top_logprobs": "supported; a number above 0 is refused unless `logprobs` is `true`",
    "truncate_prompt_tokens": "supported; `0` is refused",
}
"""Declared fields of which some values are errors."""


def request_fields_page() -> str:
    """Return the page of the fields of HTTP requests, made from the models and `fields.py`."""
    from gpt2np.server.fields import IGNORED, NEUTRAL, REFUSED
    from gpt2np.server.protocol import ChatCompletionRequest, CompletionRequest

    completion, chat = CompletionRequest.model_fields, ChatCompletionRequest.model_fields
    options = {option.json_name: name for name, option in options_of(GenerationOptions).items()}
    rows = {}
    for name in {**completion, **chat}:
        where = "" if name in completion and name in chat else "completions" * (name in completion)
        treatment = f"supported; option `{options[name]}`" if name in options else "supported"
        rows[name] = PARTIAL.get(name, treatment), where or "chat" * (name not in completion)
    for name, advice in REFUSED.items():
        _, *allowed = NEUTRAL.get(name, [None])
        text = f"refused (except `{json.dumps(*allowed)}`)" if allowed else "refused"
        text += f": {advice}" if advice else ""
        rows[name] = ("supported; refused in chat" if name in rows else text), ""
    rows |= {name: (f"ignored: {reason}", "") for name, reason in IGNORED.items()}
    table = [f"| `{name}` | {text} | {where} |" for name, (text, where) in sorted(rows.items())]
    head = [
        "# HTTP request fields",
        NOTE.strip(),
        "The table lists every field that OpenAI and vLLM define for `/v1/completions` and "
        "`/v1/chat/completions`, and some fields of llama.cpp, SGLang and `transformers`. The "
        "table also lists gpt2np's own field `interventions`, and options of "
        "gpt2np that the server does not support, such as `window`. If the last column names an "
        "endpoint, only this endpoint reads the field, and the other endpoint ignores it.",
        "A supported field that OpenAI or vLLM defines has the same meaning in gpt2np, with three "
        "exceptions. With `ignore_eos`, gpt2np never generates the end-of-text token, whereas vLLM "
        "generates it and continues. Until `min_tokens` tokens are generated, gpt2np excludes only "
        "the end-of-text token, whereas vLLM also excludes `stop_token_ids`. With "
        "`use_beam_search`, gpt2np uses at least 2 beams.",
        "The page [Generation options](options.md) describes most supported fields. If the "
        'table says "option X", the page Generation options describes the field under the name X. '
        "But a request uses the name in the first column. The page "
        "[HTTP server](../guide/server.md) explains `interventions`.",
        "The defaults are those on the page [Generation options](options.md), with three "
        "exceptions: `temperature` is 1, `top_k` is 0, and `max_tokens` is 16 for "
        "`/v1/completions` and the rest of the context for `/v1/chat/completions`. Unlike the "
        "`generate` command, the server takes no defaults from the model's generation_config.json.",
        "A refused field causes an error that names the field (status 400), unless the value "
        "counts as absent. The following rules say which values count as absent, both for fields "
        "that are always refused and for fields that are refused only in some requests:",
        "- `null` always counts as absent.\n"
        '- If the table says "except X", X counts as absent, too.\n'
        '- If the treatment begins with "refused" and the table does not say "except", `false`, '
        '`0`, `""`, `[]` and `{}` count as absent, too. The same applies to `echo` in chat.\n'
        "- No other value counts as absent.",
        "A field that the table lists as ignored changes nothing, and is not reported. A field "
        "that is not in the table, or is only for the other endpoint, is ignored, too. The "
        "response header `X-Ignored-Fields` names such fields (at most 20). But if a completion "
        "request has no `prompt`, such a field is an error. An unknown key within "
        "`structured_outputs`, `response_format` or an entry of `interventions` is an error, "
        "unless its value is `null`.",
        "The page `/docs` of a running server lists the ranges of values.",
    ]
    return (
        "\n\n".join(
            [*head, "\n".join(["| field | treatment | only in |", "|---|---|---|", *table])]
        )
        + "\n"
    )


def limits_page() -> str:
    """Return the page of the limits, with its table made from their declarations."""
    rows = (
        f"| `{limit.name}` | {limit.default:,} | "
        f"{limit.metadata['unit'] or limit.name.rpartition('_')[2]} | {limit.metadata['effect']} |"
        for limit in fields(Limits)
    )
    table = "\n".join(["| limit | default | unit | effect |", "|---|---:|---|---|", *rows])
    parts = (REFERENCE / "limits.md").read_text(encoding="utf-8").split("\n\n")
    return "\n\n".join(table if part.startswith("| limit |") else part for part in parts)


def pages() -> dict[str, str]:
    """Return the text of each page by its path in docs/reference."""
    return {
        **dict(command_pages()),
        "options.md": options_page(),
        "request_fields.md": request_fields_page(),
        "limits.md": limits_page(),
    }


def main() -> int:
    """Write the pages, or with --check compare them; return the exit code."""
    is_check = sys.argv[1:] == ["--check"]
    stale = []
    for name, text in pages().items():
        path = REFERENCE / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not is_check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
    if is_check and stale:
        print(f"out of date: {', '.join(stale)}; run python docs/generate.py", file=sys.stderr)
    return int(is_check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
