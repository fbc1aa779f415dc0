"""Look inside a pass: logit lens, attention, next token; or save its arrays.

The logit lens takes what comes out of every block through the last layer norm
and the unembedding: what would come next if the model ended there, and how
likely it were. On a terminal, what the whole model says stands out.

--npz saves the arrays inside the pass, all or those that --points chooses, as
in --npz x.npz --points 'blocks.*.attn.pattern'.
"""

import argparse
import json
import os
import shutil
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2np.cli.model_and_prompt import (
    add_model_arguments,
    add_prompt_arguments,
    given_prompt,
    load_model,
)
from gpt2np.cli.streams import notice
from gpt2np.errors import GPT2NPError, InvalidArgumentError

if TYPE_CHECKING:
    from gpt2np.interp import Trace
    from gpt2np.interp.summary import Overview
    from gpt2np.kernels.array import Array
    from gpt2np.language_model import LanguageModel
    from gpt2np.tokenizer.display import Style


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_prompt_arguments(parser)
    add_model_arguments(parser)
    add = parser.add_argument
    add("--npz", type=Path, metavar="FILE", help="save the arrays, and the prompt's ids")
    add("--force", action="store_true", help="replace the file of --npz if it exists")
    add(
        "--points",
        action="append",
        metavar="NAME",
        help="which arrays to save or, without --npz, to describe; * stands for any part of a "
        "name; may be given several times",
    )
    add("--list-points", action="store_true", help="list all names, with shapes, and end")
    add("--top", type=int, default=10, metavar="N", help="the N likeliest tokens (default: 10)")
    compare = "tell how far each layer is from transformers', which must be installed, with torch"
    add("--compare", action="store_true", help=compare)
    add("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Trace and print; returns the exit code."""
    if args.list_points:
        print(_list_of_points())
        return 0
    _check(args)
    prompt = given_prompt(args)
    lm, told = load_model(args)
    import numpy as np

    from gpt2np.interp.trace import encode_prompt
    from gpt2np.model.hooks import select_hook_points

    ids = encode_prompt(lm, prompt)
    points = select_hook_points(args.points or (["*"] if args.npz else []), lm.model.config.n_layer)
    for line in told:
        notice(line)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # so that nothing is left half-written
    with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is told in one line
        trace = _traced(lm, ids, points)
        if args.npz:
            _save(trace.subset(points), args.npz)
        shown = _shown(lm, prompt, trace, points, args)
    print(shown, flush=True)
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.top < 1:
        raise InvalidArgumentError(f"--top is {args.top}; it must be at least 1")
    file = args.npz
    if args.force and not file:
        raise InvalidArgumentError("--force is for --npz FILE")
    if file and not file.parent.is_dir():
        raise InvalidArgumentError(f"the folder {file.parent} does not exist; make it first")
    if file and file.exists():
        if not file.is_file():
            raise InvalidArgumentError(f"{file} is not a file; name one for --npz")
        if not args.force:
            raise InvalidArgumentError(f"{file} exists already; give --force to replace it")


def _traced(lm: "LanguageModel", ids: list[int], points: list[str]) -> "Trace":
    from tqdm import tqdm

    from gpt2np.interp.summary import OVERVIEW_POINTS
    from gpt2np.interp.trace import trace
    from gpt2np.model.hooks import hook_point_names, hook_points_nbytes

    every = [*points, *OVERVIEW_POINTS]
    nbytes = hook_points_nbytes(lm.model.config, len(ids), every, lm.model.dtype)
    notice(f"memory: {nbytes / 1e6:,.1f} MB for the arrays of {len(ids):,} tokens")
    total = len(hook_point_names(lm.model.config.n_layer))
    with tqdm(total=total, desc="pass", leave=False, disable=None, delay=1) as bar:

        def tick(name: str, array: "Array") -> "Array":
            bar.update()
            return array

        return trace(lm, ids, every, interventions=tick)


def _save(trace: "Trace", file: Path) -> None:
    try:
        trace.save(file)
    except OSError as error:
        raise GPT2NPError(f"can't write {file}: {error.strerror}") from error
    notice(f"{len(trace)} arrays, {trace.nbytes / 1e6:,.1f} MB, in {file}")


def _shown(
    lm: "LanguageModel", prompt: str, trace: "Trace", points: list[str], args: argparse.Namespace
) -> str:
    from gpt2np.cli.overview_text import as_text, difference_table, numbers_table
    from gpt2np.interp.compare import compare_with_transformers
    from gpt2np.interp.summary import overview_as_json, summarize_arrays

    arrays = summarize_arrays(trace.subset(points)) if args.points and not args.npz else []
    apart = compare_with_transformers(lm.model, trace.ids.tolist()) if args.compare else []
    width = shutil.get_terminal_size().columns
    seen = _overview(lm, trace, None if args.json else width, args.top)
    table, style = lm.tokenizer.vocabulary.token_bytes, _style()
    if args.json:
        content: dict[str, Any] = {
            "model": lm.name,
            "prompt": prompt,
            **overview_as_json(seen, table),
        }
        content |= {"arrays": [asdict(numbers) for numbers in arrays]} if arrays else {}
        content |= {"transformers": [asdict(difference) for difference in apart]} if apart else {}
        return json.dumps(content, ensure_ascii=False)
    parts = [as_text(seen, table, width, style)]
    parts += [numbers_table(arrays, style)] if arrays else []
    parts += [difference_table(apart, style)] if apart else []
    return "\n\n".join(parts)


def _overview(lm: "LanguageModel", trace: "Trace", width: int | None, top: int) -> "Overview":
    """With the logit lens after every token, or after those for which there is room."""
    from tqdm import tqdm

    from gpt2np.cli.overview_text import lens_columns
    from gpt2np.interp.summary import overview

    n = min(top, lm.model.config.vocab_size)
    last = len(trace.ids) if width is None else min(lens_columns(width), len(trace.ids))
    total = last * (lm.model.config.n_layer + 1)
    with tqdm(total=total, desc="logit lens", leave=False, disable=None, delay=1) as bar:
        return overview(lm.model, trace, n, last=last, progress=bar.update)


def _style() -> "Style":
    from gpt2np.tokenizer.display import Style

    return Style(colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))


def _list_of_points() -> str:
    from gpt2np.model.hooks import HOOK_POINTS

    lines = [f"{'point':<26}{'shape':<12}{'in TransformerLens':<34}meaning"]
    for point in HOOK_POINTS:
        first, *more = (a.format(i="i", next="i+1") for a in point.aliases or ("",))
        shape = point.shape.replace(" ", " × ")
        lines += [f"{point.name.format(i='i'):<26}{shape:<12}{first:<34}{point.meaning}"]
        lines += [f"{'':<38}{alias}" for alias in more]
    letters = "T tokens, C channels, H heads, D head size, F MLP width, V vocabulary; i the block"
    return "\n".join([*lines, "", letters])
