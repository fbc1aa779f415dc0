"""The page section on attention: the terms of one score.

For the shape letters, see `gpt2np.explain.run`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpt2np.explain.figures import strip
from gpt2np.explain.markup import Numbers, computed_by, escape, formula, section, table, token_text
from gpt2np.explain.run import Run
from gpt2np.kernels.array import Array
from gpt2np.model.gpt2 import attention
from gpt2np.model.ops import causal_softmax, softmax


def score_terms(query: Array, key: Array, scale: float) -> dict[str, Array]:
    """Compute an attention score step by step, in the dtype of the query.

    The forward pass adds the terms in another order, so the last digits of a score can differ.
    `query` and `key` are (D,). Returns the steps by name: arrays (D,), or () for the score.
    """
    terms = query * key
    sums = np.cumsum(terms, dtype=terms.dtype)
    return {
        "score.query": query,
        "score.key": key,
        "score.terms": terms,
        "score.sums": sums,
        "score.scaled": np.asarray(sums[-1] * terms.dtype.type(scale)),
    }


def softmax_row(query: Array, keys: Array, scale: float) -> dict[str, Array]:
    """Compute a row of an attention pattern step by step, from one query and all keys.

    `query` is (D,), `keys` (T, D). Returns the steps by name, each (T,).
    """
    scores = np.cumsum(query * keys, axis=1, dtype=query.dtype)[:, -1] * query.dtype.type(scale)
    return {
        "row.scores": scores,
        "row.exp": np.exp(scores - scores.max()),
        "row.softmax": softmax(scores),
    }


def attention_section(run: Run, numbers: Numbers) -> str:
    """Return the markup of the section on the selected attention head."""
    focus, attn = run.focus, f"blocks.{run.focus.layer}.attn"
    _add_score_numbers(run, numbers)
    heads, size = run.config.n_head, run.config.n_embd // run.config.n_head
    scale = run.config.attention_scale(focus.layer)
    query, key = (run.token(run.ids[position]) for position in (focus.position, focus.key))
    summary = (
        f"Each of the {heads} heads of block {focus.layer} computes three short vectors of {size} "
        "numbers from every token: a query (what the token looks for), a key (what it can be "
        "found by) and a value (what it passes on). A score is the product of a query and a key, "
        "term by term, added up; a softmax turns the scores of a query into weights that add up "
        "to 1. Later tokens are hidden from a query."
    )
    body = [
        formula(
            "score(i, j) = scale · Σ_d q_i[d] · k_j[d]      pattern(i, ·) = softmax(score(i, ·))"
        ),
        computed_by(attention, causal_softmax, score_terms, softmax_row),
        _focus_form(run),
        _qkv_strips(run, attn),
        f'<h4>One score, term by term</h4><p class="facts" id="score-says">Head {focus.head}: how '
        f"much does token {focus.position} {query} look at token {focus.key} {key}?</p>",
        _term_table(numbers),
        f'<p class="facts" id="score-sum">The sum is {numbers.show("score.sums", size - 1)}; times '
        f"the scale of {scale:.6g} it is the score, {numbers.show('score.scaled')}.</p>",
        "<h4>Its row of the softmax</h4>",
        _softmax_table(run, numbers),
    ]
    return section("attention", "One head’s attention", summary, "\n".join(body), level=3)


def _add_score_numbers(run: Run, numbers: Numbers) -> None:
    focus, attn = run.focus, f"blocks.{run.focus.layer}.attn"
    for letter in "qkv":
        numbers.add(f"{attn}.{letter}", run.arrays[f"{attn}.{letter}"], carry=True)
    query = run.arrays[f"{attn}.q"][focus.head, focus.position]
    keys = run.arrays[f"{attn}.k"][focus.head, : focus.position + 1]
    scale = run.config.attention_scale(focus.layer)
    arrays = score_terms(query, keys[focus.key], scale) | softmax_row(query, keys, scale)
    pattern = run.arrays[f"{attn}.pattern"]
    numbers.add("pattern", pattern, carry=True)
    arrays["row.pattern"] = pattern[focus.head, focus.position, : focus.position + 1]
    for name, array in arrays.items():
        numbers.add(name, array)


def _focus_form(run: Run) -> str:
    """Return a form in which the reader can select another head, query and key."""

    def options(names: Sequence[str], selected: int) -> str:
        return "".join(
            f'<option value="{i}"{" selected" if i == selected else ""}>{escape(name)}</option>'
            for i, name in enumerate(names)
        )

    tokens = [f"{i} {token_text(run.token_bytes(token_id))}" for i, token_id in enumerate(run.ids)]
    heads = [str(head) for head in range(run.config.n_head)]
    focus = run.focus
    return (
        '<form class="choice needs-script" id="score-choice">'
        f'<label>head <select name="head">{options(heads, focus.head)}</select></label>'
        f'<label>query <select name="query">{options(tokens, focus.position)}</select></label>'
        f'<label>key <select name="key">{options(tokens, focus.key)}</select></label></form>'
    )


def _qkv_strips(run: Run, attn: str) -> str:
    head, markup = run.focus.head, ""
    for letter, name in {"q": "queries", "k": "keys", "v": "values"}.items():
        array = run.arrays[f"{attn}.{letter}"][head]
        markup += strip(f"{attn}.{letter}", f"{name} of head {head}", array)
    return markup


def _term_table(numbers: Numbers) -> str:
    parts = ("query", "key", "terms", "sums")
    rows = [
        (str(d), *(numbers.show(f"score.{part}", d) for part in parts))
        for d in range(len(numbers.arrays["score.terms"]))
    ]
    head = ("d", "query", "key", "product", "sum so far")
    return (
        f'<div id="score-terms">{table(head, rows, "The score, term by term", kind="tall")}</div>'
    )


def _softmax_table(run: Run, numbers: Numbers) -> str:
    columns = (("scores", "4g"), ("exp", "4g"), ("softmax", "p"), ("pattern", "p"))
    rows = []
    for key in range(run.focus.position + 1):
        cells = (numbers.show(f"row.{name}", key, style=style) for name, style in columns)
        rows.append((run.numbered_token(key), *cells))
    head = ("key", "score", "exp(score − max)", "÷ their sum", "the forward pass’s weight")
    return f'<div id="score-row">{table(head, rows, "The weights of one query", kind="tall")}</div>'
