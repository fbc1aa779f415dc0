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
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2np.cli.model_options import add_model_arguments, load_quietly
from gpt2np.cli.output import print_stderr, progress, terminal_style, write_errors
from gpt2np.cli.text_input import add_prompt_arguments, read_prompt
from gpt2np.data.files import check_output_file
from gpt2np.errors import GPT2NPError, InvalidArgumentError, check_argument, counted

if TYPE_CHECKING:
    from gpt2np.interp import Saliency, Trace
    from gpt2np.kernels.array import Array
    from gpt2np.language_model import LanguageModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_prompt_arguments(parser)
    add = parser.add_argument
    points = "Activations to save to --npz or, without --npz, to summarize"
    points = f"{points}; * matches any part of a name (may be given several times)"
    add("--points", action="append", metavar="NAME", help=points)
    list_points = "List the names and shapes of all activations and exit"
    add("--list-points", action="store_true", help=list_points)
    saliency = "Use integrated gradients to show how much each token contributes to the log"
    add(
        "--saliency",
        action="store_true",
        help=f"{saliency} probability of the most likely next token",
    )
    compare = "Compare the activations with those of transformers; needs transformers and torch"
    add("--compare", action="store_true", help=compare)
    output = parser.add_argument_group("Output").add_argument
    top = "Number of most likely next tokens to show (default: 10)"
    output("--top", type=int, default=10, metavar="N", help=top)
    output("--json", action="store_true", help="Print the result as one JSON object")
    output("--npz", type=Path, metavar="FILE", help="Save activations and token ids (.npz)")
    output("--force", action="store_true", help="Overwrite the --npz file")
    add_model_arguments(parser, "dtype", "exact", "weights")


def run(args: argparse.Namespace) -> int:
    if args.list_points:
        names = ("prompt", "file", "points", "saliency", "compare", "npz", "json", "force", "model")
        if any(getattr(args, name) not in (None, False) for name in names):
            raise InvalidArgumentError("--list-points takes no prompt and no other option")
        print(_point_table())
        return 0
    _check_options(args)
    prompt = read_prompt(args)
    lm, messages = load_quietly(args)
    import numpy as np

    from gpt2np.interp.trace import prompt_ids
    from gpt2np.model.hook_points import select_hook_points

    ids = prompt_ids(lm, prompt)
    points = select_hook_points(args.points or (["*"] if args.npz else []), lm.model.config.n_layer)
    for message in messages:
        print_stderr(message)
    with np.errstate(all="ignore"):  # NaN and infinity raise an error later
        trace = _run_trace(lm, ids, points)
        if args.npz:
            saved = trace.subset(points)
            with write_errors(args.npz):
                saved.save(args.npz)
            n_arrays, size = counted(len(saved), "array"), f"{saved.nbytes / 1e6:,.1f} MB"
            print_stderr(f"{n_arrays}, {size}, in {args.npz}")
        result = _format_result(lm, prompt, trace, points, args)
    print(result, flush=True)
    return 0


def _check_options(args: argparse.Namespace) -> None:
    check_argument(args.top >= 1, "top", args.top, "at least 1")
    if args.force and not args.npz:
        raise InvalidArgumentError("--force is for --npz FILE")
    if args.npz:
        check_output_file(args.npz, overwrite=args.force, inputs=[args.file])
        is_npz = args.npz.suffix == ".npz"
        check_argument(is_npz, "npz", str(args.npz), "the name of a .npz file")
    for name in ("transformers", "torch") if args.compare else ():
        if find_spec(name) is None:
            raise GPT2NPError(
                f"{name} is not installed; to compare: pip install torch transformers"
            )


def _run_trace(lm: "LanguageModel", ids: Sequence[int], points: list[str]) -> "Trace":
    from gpt2np.interp.summary import OVERVIEW_POINTS
    from gpt2np.interp.trace import trace
    from gpt2np.model.hook_points import hook_point_names, hook_points_nbytes

    all_points = [*points, *OVERVIEW_POINTS]
    nbytes = hook_points_nbytes(lm.model.config, len(ids), all_points, lm.model.dtype)
    size, n_tokens = f"{nbytes / 1e6:,.1f} MB", counted(len(ids), "token")
    print_stderr(f"memory: {size} for the activations of {n_tokens}")
    total = len(hook_point_names(lm.model.config.n_layer))
    with progress(total=total, desc="forward pass", delay=1) as bar:

        def count(name: str, array: "Array") -> "Array":
            bar.update()
            return array

        return trace(lm, ids, all_points, interventions=count)


def _format_result(
    lm: "LanguageModel", prompt: str, trace: "Trace", points: list[str], args: argparse.Namespace
) -> str:
    """Format the overview of a trace as text, or as JSON for --json."""
    from gpt2np.cli import trace_report as report
    from gpt2np.interp.compare import compare_with_transformers
    from gpt2np.interp.summary import overview, overview_as_json, summarize_arrays

    arrays = summarize_arrays(trace.subset(points)) if args.points and not args.npz else []
    differences = compare_with_transformers(lm.model, trace.ids.tolist()) if args.compare else []
    width = shutil.get_terminal_size().columns
    n_columns = len(trace.ids) if args.json else min(report.lens_columns(width), len(trace.ids))
    config = lm.model.config
    total, top = n_columns * (config.n_layer + 1), min(args.top, config.vocab_size)
    with progress(total=total, desc="logit lens", delay=1) as bar:
        found = overview(lm.model, trace, top, last=n_columns, progress=bar.update)
    table = lm.tokenizer.vocabulary.token_bytes
    saliency = _saliency(lm, trace) if args.saliency else None
    if args.json:
        content: dict[str, Any] = {"model": lm.name, "prompt": prompt}
        content |= overview_as_json(found, table)
        if arrays:
            content["arrays"] = [asdict(numbers) for numbers in arrays]
        if saliency:
            content["saliency"] = saliency.values.tolist()
        if differences:
            content["transformers"] = [asdict(difference) for difference in differences]
        return json.dumps(content, ensure_ascii=False)
    style = terminal_style()
    parts = [report.as_text(found, table, width, style)]
    parts += [report.saliency_lines(saliency, table, style)] if saliency else []
    parts += [report.numbers_table(arrays, style)] if arrays else []
    parts += [report.difference_table(differences, style)] if differences else []
    return "\n\n".join(parts)


def _saliency(lm: "LanguageModel", trace: "Trace") -> "Saliency":
    from gpt2np.interp import Target, logit_lens, saliency

    last = f"blocks.{lm.model.config.n_layer - 1}.resid"
    token = int(logit_lens(lm, trace[last][-1]).argmax())
    return saliency(lm, trace.ids.tolist(), Target(token))


def _point_table() -> str:
    from gpt2np.model.hook_points import HOOK_POINTS

    lines = [f"{'point':<26}{'shape':<12}{'in TransformerLens':<34}meaning"]
    for point in HOOK_POINTS:
        first, *more = (a.format(i="i", next="i+1") for a in point.aliases or ("",))
        shape = point.shape.replace(" ", " × ")
        lines += [f"{point.name.format(i='i'):<26}{shape:<12}{first:<34}{point.meaning}"]
        lines += [f"{'':<38}{alias}" for alias in more]
    legend = "T tokens, C channels, H heads, D head size, F MLP width, V vocabulary size"
    legend = f"{legend}, i block index"
    return "\n".join([*lines, "", legend])
