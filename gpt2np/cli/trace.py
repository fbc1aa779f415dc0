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
from gpt2np.cli.output import print_stderr, terminal_style
from gpt2np.cli.text_input import add_prompt_arguments, read_prompt
from gpt2np.data.files import check_target
from gpt2np.errors import InvalidArgumentError, check_argument, counted
from gpt2np.interp import Target, Trace, logit_lens, saliency
from gpt2np.interp.summary import OVERVIEW_POINTS, overview, overview_as_json, summarize_arrays
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
    output("--json", action="store_true", help="Print the result as one JSON object")
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
        found = _run_trace(lm, ids, points)
        if args.npz:
            saved = found.subset(points)
            saved.save(args.npz)
            n_arrays, size = counted(len(saved), "array"), f"{saved.nbytes / 1e6:,.1f} MB"
            print_stderr(f"{n_arrays}, {size}, in {args.npz}")
        print(_format_result(lm, prompt, found, points, args), flush=True)
    return 0


def _check_options(args: argparse.Namespace) -> None:
    check_argument(args.top >= 1, "top", args.top, "at least 1")
    if args.saliency and not args.json:
        raise InvalidArgumentError("--saliency needs --json")
    if args.npz:
        check_target(args.npz, force=args.force, inputs=[args.file])
        is_npz = args.npz.suffix == ".npz"
        check_argument(is_npz, "npz", str(args.npz), "the name of a .npz file")


def _run_trace(lm: LanguageModel, ids: Sequence[int], points: list[str]) -> Trace:
    all_points = [*points, *OVERVIEW_POINTS]
    nbytes = hook_points_nbytes(lm.model.config, len(ids), all_points, lm.model.dtype)
    size, n_tokens = f"{nbytes / 1e6:,.1f} MB", counted(len(ids), "token")
    print_stderr(f"memory: {size} for the activations of {n_tokens}")
    total = len(hook_point_names(lm.model.config.n_layer))
    with progress_bar(total, "forward pass", "point") as bar:

        def count(name: str, array: Array) -> Array:
            bar.update(1)
            return array

        return trace(lm, ids, all_points, interventions=count)


def _format_result(
    lm: LanguageModel, prompt: str, trace: Trace, points: list[str], args: argparse.Namespace
) -> str:
    """Format the overview of a trace as text, or as JSON for --json."""
    arrays = summarize_arrays(trace.subset(points)) if args.points and not args.npz else []
    width = shutil.get_terminal_size().columns
    n_columns = len(trace.ids) if args.json else min(report.lens_columns(width), len(trace.ids))
    config = lm.model.config
    total, top = n_columns * (config.n_layer + 1), min(args.top, config.vocab_size)
    with progress_bar(total, "logit lens", "position") as bar:
        found = overview(lm.model, trace, top, last=n_columns, progress=bar.update)
    table = lm.tokenizer.vocabulary.token_bytes
    if not args.json:
        style = terminal_style()
        parts = [report.as_text(found, table, width, style)]
        parts += [report.numbers_table(arrays, style)] if arrays else []
        return "\n\n".join(parts)
    content: dict[str, Any] = {"model": lm.name, "prompt": prompt}
    content |= overview_as_json(found, table)
    if arrays:
        content["arrays"] = [asdict(numbers) for numbers in arrays]
    if args.saliency:
        last = trace[f"blocks.{config.n_layer - 1}.resid"][-1]
        target = Target(int(logit_lens(lm, last).argmax()))
        content["saliency"] = saliency(lm, trace.ids.tolist(), target).values.tolist()
    return json.dumps(content, ensure_ascii=False)


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
