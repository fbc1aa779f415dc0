"""Show the logit lens, attention and next token of a prompt; save activations.

The logit lens applies the final layer norm and the unembedding to the output of
each block. For each block, the result is a token and its probability: the next
token that the model would predict if this block were the last. At a terminal,
predictions that equal the prediction after the last block are highlighted.

--npz saves all activations of the forward pass, or only the activations that
--points selects, as in --npz x.npz --points 'blocks.*.attn.pattern'.
"""

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gpt2np.cli import trace_report as report
from gpt2np.cli.model_options import add_model_arguments, load_model
from gpt2np.cli.output import print_stderr, size_text, terminal_style
from gpt2np.cli.text_input import add_prompt_arguments, read_prompt
from gpt2np.data.files import check_target
from gpt2np.errors import InvalidArgumentError, check_argument, counted
from gpt2np.interp import Target, Trace, describe_pass, saliency
from gpt2np.interp.description import DESCRIBED_POINTS
from gpt2np.interp.lens import RESIDUALS, lens_table
from gpt2np.interp.summary import PATTERNS, summarize_arrays
from gpt2np.interp.trace import prompt_ids, trace
from gpt2np.kernels.array import Array
from gpt2np.language_model import LanguageModel
from gpt2np.model.hook_points import (
    HOOK_POINTS,
    hook_point_names,
    hook_points_nbytes,
    select_hook_points,
)
from gpt2np.progress import progress_bar
from gpt2np.tokenizer.display import Style


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_prompt_arguments(parser)
    add = parser.add_argument
    points = "Activations to save to --npz or, without --npz, to summarize"
    points = f"{points}; * matches any part of a name (may be given several times)"
    add("--points", action="append", metavar="NAME", help=points)
    list_points = "List the names and shapes of all activations and exit"
    add("--list-points", action="store_true", help=list_points)
    saliency = "With --json: add each token's contribution to the log probability of the most"
    saliency = f"{saliency} likely next token, by integrated gradients"
    add("--saliency", action="store_true", help=saliency)
    output = parser.add_argument_group("Output").add_argument
    top = "Number of most likely next tokens to show (default: 10)"
    output("--top", type=int, default=10, metavar="N", help=top)
    output("--json", action="store_true", help="Print a description of the pass as a JSON object")
    output("--npz", type=Path, metavar="FILE", help="Save activations and token ids (.npz)")
    output("--force", action="store_true", help="Overwrite the --npz file")
    add_model_arguments(parser, "dtype", "exact", "weights")


def run(args: argparse.Namespace) -> int:
    if args.list_points:
        print(_point_table())
        return 0
    _check_options(args)
    prompt = read_prompt(args)
    lm = load_model(args)
    ids = prompt_ids(lm, prompt)
    points = select_hook_points(args.points or (["*"] if args.npz else []), lm.model.config.n_layer)
    with np.errstate(all="ignore"):  # NaN and infinity raise an error later
        needed = DESCRIBED_POINTS if args.json else (*RESIDUALS, PATTERNS)
        found = _run_trace(lm, ids, [*points, *needed])
        if args.npz:
            saved = found.subset(points)
            saved.save(args.npz)
            n_arrays, size = counted(len(saved), "array"), size_text(saved.nbytes)
            print_stderr(f"{n_arrays}, {size}, in {args.npz}")
        arrays = summarize_arrays(found.subset(points)) if args.points and not args.npz else []
        top = min(args.top, lm.model.config.vocab_size)
        if args.json:
            content = {"prompt": prompt, **_described(lm, found, top, args.saliency)}
            content |= {"arrays": [asdict(each) for each in arrays]} if arrays else {}
            print(json.dumps(content, ensure_ascii=False), flush=True)
        else:
            style = terminal_style()
            tables = [report.numbers_table(arrays, style)] if arrays else []
            print("\n\n".join([_report(lm, found, top, style), *tables]), flush=True)
    return 0


def _check_options(args: argparse.Namespace) -> None:
    check_argument(args.top >= 1, "top", args.top, "at least 1")
    if args.saliency and not args.json:
        raise InvalidArgumentError("--saliency needs --json")
    if args.npz:
        check_target(args.npz, (".npz",), force=args.force, inputs=[args.file])


def _run_trace(lm: LanguageModel, ids: Sequence[int], points: list[str]) -> Trace:
    nbytes = hook_points_nbytes(lm.model.config, len(ids), points, lm.model.dtype)
    n_tokens = counted(len(ids), "token")
    print_stderr(f"memory: {size_text(nbytes)} for the activations of {n_tokens}")
    total = len(hook_point_names(lm.model.config.n_layer))
    with progress_bar(total, "forward pass", "point") as bar:

        def count(name: str, array: Array) -> Array:
            bar.update(1)
            return array

        return trace(lm, ids, points, interventions=count)


def _described(lm: LanguageModel, trace: Trace, top: int, has_saliency: bool) -> dict[str, Any]:
    """Return the description of the pass, with --saliency of the most likely next token."""
    described = describe_pass(lm, trace, n=top)
    if has_saliency:
        target = Target(described["next"][0]["id"])
        described["saliency"] = saliency(lm, trace.ids.tolist(), target).values.tolist()
    return described


def _report(lm: LanguageModel, trace: Trace, top: int, style: Style) -> str:
    """Return the text report, as wide as the terminal."""
    width = shutil.get_terminal_size().columns
    n_columns = min(report.lens_columns(width), len(trace.ids))
    total = n_columns * (lm.model.config.n_layer + 1)
    with progress_bar(total, "logit lens", "position") as bar:
        lens = lens_table(lm.model, trace, top, last=n_columns, progress=bar.update)
    return report.as_text(trace, lens, lm.tokenizer.vocabulary.token_bytes, width, style)


def _point_table() -> str:
    lines = [f"{'point':<26}{'shape':<12}{'in TransformerLens':<34}meaning"]
    for point in HOOK_POINTS:
        first, *more = (a.format(i="i", next="i+1") for a in point.aliases or ("",))
        shape = point.shape.replace(" ", " × ")
        lines += [f"{point.name.format(i='i'):<26}{shape:<12}{first:<34}{point.meaning}"]
        lines += [f"{'':<38}{alias}" for alias in more]
    legend = "T tokens, C channels, H heads, D head size, F MLP width, V vocabulary size"
    legend = f"{legend}, i block index"
    return "\n".join([*lines, "", legend])
