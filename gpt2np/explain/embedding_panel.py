"""Ids → vectors: the token's row, plus the position's row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.explain.html import formula, panel, source, table, token
from gpt2np.explain.numbers import Numbers, rounded
from gpt2np.explain.picture import picture
from gpt2np.explain.run import Run
from gpt2np.model.model import GPT2

Array = NDArray[Any]

_NEAREST = 6


def nearest_tokens(embedding: Array, ids: list[int], count: int) -> tuple[Array, Array]:
    """The other tokens whose vectors point most nearly the same way: ids and cosines.

    embedding: (V, C). Both results are (N, count), the nearest first.
    """
    lengths = np.sqrt(np.einsum("vc,vc->v", embedding, embedding))  # (V,)
    lengths = np.maximum(lengths, np.finfo(embedding.dtype).tiny)
    cosines = (embedding[ids] @ embedding.T) / lengths[ids][:, None] / lengths  # (N, V)
    cosines[np.arange(len(ids)), ids] = -2
    count = min(count, len(embedding) - 1)
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
    return nearest, np.take_along_axis(cosines, nearest, 1)


def embedding_panel(run: Run, numbers: Numbers) -> str:
    """The panel's markup."""
    n, config = len(run.ids), run.config
    table_of_tokens = run.model.weights["wte.weight"]
    vectors = {
        "wte": ("token: rows of wte", table_of_tokens[run.ids]),
        "wpe": ("position: rows of wpe", run.model.weights["wpe.weight"][:n]),
        "embed": ("their sum: the residual stream at its start", run.arrays["embed"]),
    }
    for name, (_, array) in vectors.items():
        numbers.add(name, array, carry=name != "embed")
    nearest, cosines = nearest_tokens(table_of_tokens, run.ids, _NEAREST)
    numbers.add("nearest", nearest)
    numbers.add("cosine", cosines)
    says = (
        f"Each id picks a row of {config.n_embd} numbers from a table of {config.vocab_size:,} "
        "rows; each place in the text picks a row of a second table; the two are added. "
        "Everything the model knows about a token on its own is in that one row: rows that point "
        "the same way belong to tokens that are used alike."
    )
    body = [
        formula("x = wte[id] + wpe[position]"),
        source(GPT2._pass),
        '<p class="hint">A row is a token, a column a channel; blue is above zero, orange below, '
        "and the stronger the colour, the further.</p>",
        *(strip(name, title, array) for name, (title, array) in vectors.items()),
        "<h3>The nearest tokens</h3>",
        '<p class="hint">By the cosine of the angle between two rows of wte: 1 is the same '
        "direction, 0 nothing in common.</p>",
        source(nearest_tokens),
        _nearest_table(run, numbers),
    ]
    return panel("embedding", "From ids to vectors", says, "\n".join(body))


def strip(name: str, title: str, array: Array, row_names: str = "tokens") -> str:
    """A picture of array (n, m) whose numbers can be read one by one.

    The script finds the array by `name`; `row_names` says whether a row is a token or a channel's
    vector.
    """
    limit = float(np.quantile(np.abs(array), 0.995)) or 1.0
    full = f'full colour at ±<span class="limit">{rounded(limit)}</span>'
    alt = f"{title}; {array.shape[0]} rows of {array.shape[1]} numbers"
    attributes = (
        f'data-strip="{name}" data-rows="{row_names}" tabindex="0" style="--rows: {len(array)}"'
    )
    return (
        f'<figure class="strip"><figcaption>{title} <span class="hint">'
        f"{array.shape[0]} × {array.shape[1]}; {full}</span></figcaption>"
        f'{picture(array, limit, alt, attributes)}<output class="readout"></output></figure>'
    )


def _nearest_table(run: Run, numbers: Numbers) -> str:
    nearest = numbers.arrays["nearest"]
    rows = []
    for at, number in enumerate(run.ids):
        near = [
            f"{token(run.bytes_of(int(other)))} {numbers.show('cosine', at, place, as_='f2')}"
            for place, other in enumerate(nearest[at])
        ]
        rows.append((f"{at} {token(run.bytes_of(number))}", *near))
    head = ("token", *(f"{place + 1}." for place in range(nearest.shape[1])))
    return table(head, rows, "The tokens nearest to each token of the prompt, with their cosines")
