"""Section on embeddings: each id's row of wte plus each position's row of wpe."""

from __future__ import annotations

import numpy as np

from gpt2np.explain.figures import strip
from gpt2np.explain.markup import Numbers, computed_by, formula, section, table
from gpt2np.explain.run import Run
from gpt2np.kernels.array import Array
from gpt2np.model.gpt2 import gpt2

_N_NEAREST = 6


def nearest_tokens(embedding: Array, ids: list[int], count: int) -> tuple[Array, Array]:
    """Return the tokens with the highest cosine similarity to each id, and the similarities.

    embedding: (V, C). Both results are (N, count), the nearest first, without the id itself.
    """
    lengths = np.sqrt(np.einsum("vc,vc->v", embedding, embedding))  # (V,)
    lengths = np.maximum(lengths, np.finfo(embedding.dtype).tiny)
    cosines = (embedding[ids] @ embedding.T) / lengths[ids][:, None] / lengths  # (N, V)
    cosines[np.arange(len(ids)), ids] = -2
    count = min(count, len(embedding) - 1)
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
    return nearest, np.take_along_axis(cosines, nearest, 1)


def embedding_section(run: Run, numbers: Numbers) -> str:
    """Return the section's markup."""
    n, config = len(run.ids), run.config
    wte = run.model.weights["wte.weight"]
    vectors = {
        "wte": ("token: rows of wte", wte[run.ids]),
        "wpe": ("position: rows of wpe", run.model.weights["wpe.weight"][:n]),
        "embed": ("their sum: the residual stream at its start", run.arrays["embed"]),
    }
    for name, (_, array) in vectors.items():
        numbers.add(name, array, carry=name != "embed")
    nearest, cosines = nearest_tokens(wte, run.ids, _N_NEAREST)
    numbers.add("nearest", nearest)
    numbers.add("cosine", cosines)
    summary = (
        f"Each id selects a row of {config.n_embd} numbers from a table of {config.vocab_size:,} "
        "rows; each position selects a row of a second table; the two rows are added. "
        "The row of a token is everything the model knows about the token on its own: rows that "
        "point in the same direction belong to tokens that are used alike."
    )
    body = [
        formula("x = wte[id] + wpe[position]"),
        computed_by(gpt2),
        '<p class="hint">A row is a token, a column a channel; blue is above zero, orange below, '
        "and a stronger colour means further from zero.</p>",
        *(strip(name, title, array) for name, (title, array) in vectors.items()),
        "<h3>The nearest tokens</h3>",
        '<p class="hint">By the cosine of the angle between two rows of wte: 1 is the same '
        "direction, 0 a right angle.</p>",
        computed_by(nearest_tokens),
        _nearest_table(run, numbers),
    ]
    return section("embedding", "From ids to vectors", summary, "\n".join(body))


def _nearest_table(run: Run, numbers: Numbers) -> str:
    nearest = numbers.arrays["nearest"]
    rows = []
    for position in range(len(run.ids)):
        cells = [
            f"{run.token(int(token_id))} {numbers.show('cosine', position, place, style='f2')}"
            for place, token_id in enumerate(nearest[position])
        ]
        rows.append((run.numbered_token(position), *cells))
    head = ("token", *(f"{place + 1}." for place in range(nearest.shape[1])))
    return table(head, rows, "The tokens nearest to each token of the prompt, with their cosines")
