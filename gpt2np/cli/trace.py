"""Show the logit lens, attention and next token of a prompt.

The logit lens applies the final layer norm and the unembedding to the output of
each block. For each block, the result is a token and its probability: the next
token that the model would predict if this block were the last. The table shows
the last five positions.
"""

import argparse
import json
import shutil
from collections.abc import Iterator

import numpy as np

from gpt2np.cli.model_options import add_model_arguments, load_model
from gpt2np.cli.output import terminal_style
from gpt2np.cli.text_input import add_prompt_argument, read_prompt
from gpt2np.errors import check_argument
from gpt2np.interp import Trace, describe_pass
from gpt2np.interp.analysis import PATTERNS, RESIDUALS, lens_table, top_k
from gpt2np.interp.description import DESCRIBED_POINTS
from gpt2np.interp.trace import trace
from gpt2np.language_model import LanguageModel
from gpt2np.tokenizer.display import token_rows
from gpt2np.tokenizer.vocabulary import token_bytes

_LENS_POSITIONS = 5
_WEIGHTS = 3  # attention weights of each block


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_prompt_argument(parser)
    output = parser.add_argument_group("Output").add_argument
    top = "Number of most likely next tokens to show (default: 10)"
    output("--top", type=int, default=10, metavar="N", help=top)
    output("--json", action="store_true", help="Print results and details as one JSON object")
    add_model_arguments(parser, "dtype", "exact", "weights")


def run(args: argparse.Namespace) -> int:
    check_argument(args.top >= 1, "top", args.top, "at least 1")
    prompt = read_prompt(args)
    lm = load_model(args)
    top = min(args.top, lm.model.config.vocab_size)
    with np.errstate(all="ignore"):  # NaN and infinity raise an error later
        points = DESCRIBED_POINTS if args.json else (*RESIDUALS, PATTERNS)
        traced = trace(lm, prompt, points)
        if args.json:
            content = {"prompt": prompt, **describe_pass(lm, traced, n=top)}
            print(json.dumps(content, ensure_ascii=False), flush=True)
        else:
            print("\n".join([*_report(lm, traced, top)]), flush=True)
    return 0


def _report(lm: LanguageModel, traced: Trace, top: int) -> Iterator[str]:
    """Yield the lines of the report: tokens, logit lens, attention and next token."""
    ids = traced.ids.tolist()
    lens = lens_table(lm, traced, top, last=_LENS_POSITIONS)
    tokens = token_bytes(ids, lm.tokenizer.vocabulary.token_bytes)
    yield token_rows(tokens, ids, shutil.get_terminal_size().columns, terminal_style())
    yield f"\nlogit lens: next token after each block, at the last {len(lens.positions)} positions"
    yield repr(lens)
    yield "\nattention of the last token (head→token@position)"
    texts = lm.tokenizer.token_texts(ids)
    for layer, name in enumerate(traced.require(PATTERNS)):
        weights = traced[name][:, -1].reshape(-1)  # (H·T)
        cells = []
        for index in top_k(weights, min(_WEIGHTS, weights.size)):
            head, position = divmod(int(index), len(ids))
            cells.append(f"{head}→{texts[position]!r}@{position} {weights[index]:.0%}")
        yield f"block {layer:<3} {'  '.join(cells)}"
    yield "\nnext token"
    for token_id, p in zip(lens.ids[-1, -1].tolist(), lens.probabilities[-1, -1], strict=True):
        yield f"{p:6.1%} {lens.texts[token_id]!r}"
