"""Tell whether another engine's results differ by rounding or by a bug."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2np.cli.declared_options import add_option
from gpt2np.cli.model_options import add_performance_arguments, load_model
from gpt2np.cli.parser import spelled
from gpt2np.data.files import check_target, read_json_object
from gpt2np.errors import InvalidArgumentError
from gpt2np.runtime.options import MODEL_HELP, ModelOptions

if TYPE_CHECKING:
    from gpt2np.parity import Report

_CHECK = """Compare an engine's arrays or greedy texts with reference arrays.

To compare arrays, set TESTED to a .npz or .safetensors file. The arrays have
the names of hook points, or the names that transformers uses: hidden_states,
attentions and logits. Put the prompt's name first, as in prompt1/logits;
otherwise the array belongs to the first prompt. The engine need not provide all
arrays.

To compare texts, set TESTED to a .json file: an object that maps the name of
each prompt to the new token ids of the greedy text, as in {"short": [11, 290]}.

The exit code is 0 if rounding explains all differences, and 1 if not."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(
        title="Actions", dest="action", metavar="ACTION", required=True, parser_class=type(parser)
    )
    record = actions.add_parser(
        "record",
        help="Write reference arrays: the exact results of every step of the forward pass",
        description="Write reference arrays, for comparisons with other engines: the results of\n"
        "every step of the forward pass, as with --exact. The file has the same bytes on\n"
        "every machine.",
    )
    add = record.add_argument
    add("reference", type=Path, metavar="REFERENCE", help="File to write: .safetensors")
    prompt = "Prompt to record; the prompts are named prompt0, prompt1, ... (may be given several "
    prompt += "times; default: built-in prompts, named short, token, unicode, repeated and full)"
    add("--prompt", action="append", metavar="TEXT", help=prompt)
    points = "Array to record, by hook point, as in 'blocks.0.attn.q' or 'blocks.*' (may be given "
    points += "several times; default: all)"
    add("--points", action="append", metavar="POINT", help=points)
    add("--force", action="store_true", help="Overwrite REFERENCE if it exists")
    checking = actions.add_parser(
        "check",
        help="Compare an engine's arrays or greedy texts with reference arrays",
        description=_CHECK,
    )
    add = checking.add_argument
    add("reference", type=Path, metavar="REFERENCE", help="File that 'gpt2np parity record' wrote")
    add("tested", type=Path, metavar="TESTED", help="Arrays or token ids of the engine")
    dtype = "Data type that the engine computes in (default: float32 for texts; for arrays, the "
    dtype += "smallest type that represents all their numbers exactly)"
    add("--dtype", choices=("float32", "bfloat16", "float16", "float64"), dest="engine", help=dtype)
    add("--json", action="store_true", help="Print the report as one JSON object")
    add_option(record, ModelOptions, "model")
    add_option(
        checking, ModelOptions, "model", help=f"{MODEL_HELP} (default: the model of REFERENCE)"
    )
    for action in (record, checking):
        add_performance_arguments(action)
        action.set_defaults(exact=True)


def run(args: argparse.Namespace) -> int:
    if args.action == "record":
        return _record(args)
    from gpt2np.parity import check, check_texts, read_reference, read_tested

    reference = read_reference(args.reference)
    args.model = args.model or reference.model
    if args.tested.suffix == ".json":
        ids = read_json_object(args.tested, InvalidArgumentError)
        results = check_texts(reference, ids, load_model(args), args.engine or "float32")
        is_rounding = all(token is None for token in results.values())
        content: dict[str, Any] = {"is_rounding": is_rounding, "first_wrong_tokens": results}
        lines = [
            f"{name:10} {'rounding' if i is None else f'a bug, first at new token {i} (from 0)'}"
            for name, i in results.items()
        ]
    else:
        report = check(reference, read_tested(args.tested), load_model(args), args.engine)
        is_rounding = report.is_rounding
        content = {"is_rounding": is_rounding, **asdict(report)}
        lines = [*_wrong_arrays(report), spelled(report)]
    print(json.dumps(content) if args.json else "\n".join(lines))
    return 0 if is_rounding else 1


def _wrong_arrays(report: "Report") -> Iterator[str]:
    """Yield the lines of the table of wrong arrays."""
    if report.first:
        yield f"{'wrong array':24} {'worst prompt':12} {'error':>9} {'tolerance':>9}"
    for name, points in groupby(report.points, key=lambda p: p.point):
        worst = max(points, key=lambda p: p.ratio)
        if not worst.is_rounding:
            error, tolerance = f"{worst.error:9.2g}", f"{worst.tolerance:9.2g}"
            yield f"{name:24} {worst.prompt:12} {error} {tolerance}"


def _record(args: argparse.Namespace) -> int:
    from gpt2np.parity import record, write_reference

    check_target(args.reference, (".safetensors",), force=args.force)
    prompts = {f"prompt{i}": text for i, text in enumerate(args.prompt or [])} or None
    lm = load_model(args, may_fall_back=False)
    reference = record(lm, prompts, args.points or "*")
    write_reference(reference, args.reference)
    print(args.reference)
    return 0
