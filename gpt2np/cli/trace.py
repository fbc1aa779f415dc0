"""Show the logit lens, attention and next token of a prompt.

The logit lens applies the final layer norm and the unembedding to the output of
each block. For each block, the result is a token and its probability: the next
token that the model would predict if this block were the last. At a terminal,
predictions that equal the prediction after the last block are highlighted.
"""

import argparse
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gpt2np.cli.model_options import add_model_arguments, load_model
from gpt2np.cli.output import terminal_style
from gpt2np.cli.text_input import add_prompt_arguments, read_prompt
from gpt2np.errors import check_argument
from gpt2np.interp import Trace, describe_pass
from gpt2np.interp.description import DESCRIBED_POINTS
from gpt2np.interp.lens import RESIDUALS, LensTable, lens_table, top_k
from gpt2np.interp.summary import PATTERNS
from gpt2np.interp.trace import trace
from gpt2np.language_model import LanguageModel
from gpt2np.progress import progress_bar
from gpt2np.tokenizer.display import SPACE_SYMBOL, Style, display_width, escape_token, token_rows
from gpt2np.tokenizer.vocabulary import token_bytes

# Widths in terminal columns.
_LABEL = 9  # "block 47"
_TOKEN = 8  # a token of the logit lens
_CELL = _TOKEN + 6  # a token and its probability, " 100% "
_POSITION = 12  # a token and its position, "token@17"
_HEAD_CELL = 3 + _POSITION + 7  # "12→" before the position, " 100%  " after it
_BAR = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_prompt_arguments(parser)
    output = parser.add_argument_group("Output").add_argument
    top = "Number of most likely next tokens to show (default: 10)"
    output("--top", type=int, default=10, metavar="N", help=top)
    output("--json", action="store_true", help="Print a description of the pass as a JSON object")
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
            print(_report(lm, traced, top, terminal_style()), flush=True)
    return 0


def _report(lm: LanguageModel, trace: Trace, top: int, style: Style) -> str:
    """Return the text report, as wide as the terminal."""
    width = shutil.get_terminal_size().columns
    n_columns = min(_lens_columns(width), len(trace.ids))
    total = n_columns * (lm.model.config.n_layer + 1)
    with progress_bar(total, "logit lens", "position") as bar:
        lens = lens_table(lm.model, trace, top, last=n_columns, progress=bar.update)
    return as_text(trace, lens, lm.tokenizer.vocabulary.token_bytes, width, style)


def as_text(
    trace: Trace, lens: LensTable, table: Mapping[int, bytes], width: int, style: Style
) -> str:
    """Format a pass: tokens, logit lens, the last token's attention, and the next token."""
    ids = trace.ids.tolist()
    tokens = token_bytes(ids, table)
    parts = (
        [token_rows(tokens, ids, width, style)],
        _lens_lines(lens, tokens, table, width, style),
        _attention_lines(trace, tokens, lens.ids.shape[-1], width, style),
        _next_token_lines(trace, lens, table, style),
    )
    return "\n\n".join("\n".join(part) for part in parts)


def _lens_columns(width: int) -> int:
    """Return how many tokens of the logit lens fit into `width` columns."""
    return max(1, (width - _LABEL) // _CELL)


def _lens_lines(
    lens: LensTable, tokens: Sequence[bytes], table: Mapping[int, bytes], width: int, style: Style
) -> Iterator[str]:
    """Yield the logit lens: a line for the embedding and each block, a column for each token."""
    total = len(tokens)
    n_columns = min(len(lens.positions), _lens_columns(width))
    suffix = "" if n_columns == total else f" (the last {n_columns} of {total} tokens)"
    yield style.bold(f"logit lens: next token predicted after each block{suffix}")
    heads = [_fit(token, _CELL) for token in tokens[-n_columns:]]
    yield style.dim("after".ljust(_LABEL) + "".join(heads).rstrip())
    ids, probabilities = lens.ids[:, -n_columns:, 0], lens.probabilities[:, -n_columns:, 0]
    for point, row, p in zip(lens.points, ids, probabilities, strict=True):
        cells = []
        for index, token in enumerate(token_bytes(row.tolist(), table)):
            cell = f"{_fit(token, _TOKEN)}{p[index]:5.0%}"
            cells.append(style.bold(cell) if row[index] == ids[-1, index] else cell)
        yield style.dim(_layer_label(point).ljust(_LABEL)) + " ".join(cells)


def _attention_lines(
    trace: Trace, tokens: Sequence[bytes], most: int, width: int, style: Style
) -> Iterator[str]:
    """Yield a line per block with the largest attention weights of the last token, over all heads.

    `most` is the largest number of weights.
    """
    yield style.bold("attention of the last token (head→token@position)")
    n_cells = min(most, max(1, (width - _LABEL) // _HEAD_CELL))
    for layer, name in enumerate(trace.require(PATTERNS)):
        weights = trace[name][:, -1].reshape(-1)  # (H·T)
        cells = ""
        for index in top_k(weights, min(n_cells, weights.size)):
            head, position = divmod(int(index), len(tokens))
            token = _fit(tokens[position], _POSITION - len(f"@{position}")).rstrip()
            cells += f"{head:>2}→{_pad(f'{token}@{position}', _POSITION)}{weights[index]:5.0%}  "
        yield style.dim(f"block {layer}".ljust(_LABEL)) + cells.rstrip()


def _next_token_lines(
    trace: Trace, lens: LensTable, table: Mapping[int, bytes], style: Style
) -> Iterator[str]:
    """Yield a bar for each likely next token, then the total probability of all other tokens."""
    yield style.bold("next token")
    ids, probabilities = lens.ids[-1, -1].tolist(), lens.probabilities[-1, -1].tolist()
    for token, p in zip(token_bytes(ids, table), probabilities, strict=True):
        bar = "█" * round(p / probabilities[0] * _BAR)
        yield f"{_fit(token, 2 * _TOKEN)}{p:6.1%} {bar}".rstrip()
    n_rest = trace.config.vocab_size - len(ids)
    rest = max(0.0, 1 - sum(probabilities))
    yield style.dim(f"{f'{n_rest:,} others':<{2 * _TOKEN}}{rest:6.1%}")


def _layer_label(point: str) -> str:
    """Return the name of a hook point's layer, e.g. "block 3" for blocks.3.resid."""
    return f"block {point.split('.')[1]}" if point.startswith("blocks.") else point


def _fit(token: bytes, columns: int) -> str:
    """Format a token as text of `columns` columns; a long token is cut and ends in "…"."""
    text = escape_token(token).replace(" ", SPACE_SYMBOL)
    if display_width(text) >= columns:
        while display_width(text) >= columns - 1:
            text = text[:-1]
        text += "…"
    return _pad(text, columns)


def _pad(text: str, columns: int) -> str:
    return text + " " * (columns - display_width(text))
