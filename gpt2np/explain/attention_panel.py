"""One head of one block: query, key and value, and one score written out term by term."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.explain.embedding_panel import strip
from gpt2np.explain.html import formula, panel, source, table, text, token, token_text
from gpt2np.explain.numbers import Numbers
from gpt2np.explain.run import Run
from gpt2np.model.model import GPT2
from gpt2np.model.ops import softmax
from gpt2np.runtime.query_blocks import attention_pattern

Array = NDArray[Any]


def score_terms(query: Array, key: Array, scale: float) -> dict[str, Array]:
    """A score as one would add it up by hand, in float32: query and key (D) → name → (D) or one.

    The forward pass adds the same terms in another order, so its last digits can differ.
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
    """A row of the pattern by hand: query (D), keys (T, D) → name → (T)."""
    scores = np.cumsum(query * keys, axis=1, dtype=query.dtype)[:, -1] * query.dtype.type(scale)
    return {
        "row.scores": scores,
        "row.exp": np.exp(scores - scores.max()),
        "row.softmax": softmax(scores),
    }


def attention_panel(run: Run, numbers: Numbers) -> str:
    """The panel's markup."""
    focus, layer = run.focus, f"blocks.{run.focus.layer}.attn"
    for letter in "qkv":
        numbers.add(f"{layer}.{letter}", run.arrays[f"{layer}.{letter}"], carry=True)
    q, k = run.arrays[f"{layer}.q"][focus.head], run.arrays[f"{layer}.k"][focus.head]
    scale = run.model.attention_scale(focus.layer)
    parts = score_terms(q[focus.position], k[focus.key], scale)
    parts |= softmax_row(q[focus.position], k[: focus.position + 1], scale)
    pattern = run.arrays[f"{layer}.pattern"][focus.head, focus.position, : focus.position + 1]
    for name, array in (parts | {"row.pattern": pattern}).items():
        numbers.add(name, array)
    heads, size = run.config.n_head, len(q[0])
    says = (
        f"Each of the {heads} heads of block {focus.layer} makes three short vectors of {size} "
        "numbers from every token: a query (what it looks for), a key (what it can be found by) "
        "and a value (what it hands over). A score is the product of a query with a key, term by "
        "term, added up; a softmax makes a token’s scores into weights that add up to 1. Tokens "
        "that come later are not seen."
    )
    body = [
        formula(
            "score(i, j) = scale · Σ_d q_i[d] · k_j[d]      pattern(i, ·) = softmax(score(i, ·))"
        ),
        source(GPT2._mix_values, attention_pattern, score_terms, softmax_row),
        _choice(run),
        _strips(run, layer),
        f'<h4>One score, term by term</h4><p class="facts" id="score-says">{_sentence(run)}</p>',
        _terms(numbers),
        f'<p class="facts" id="score-sum">The sum is {numbers.show("score.sums", size - 1)}; times '
        f"the scale of {scale:.6g} it is the score, {numbers.show('score.scaled')}.</p>",
        "<h4>Its row of the softmax</h4>",
        _row(run, numbers),
    ]
    return panel("attention", "One head’s attention", says, "\n".join(body), level=3)


def _choice(run: Run) -> str:
    """The script lets the reader choose another head, query and key."""

    def options(names: list[str], chosen: int) -> str:
        return "".join(
            f'<option value="{at}"{" selected" if at == chosen else ""}>{text(name)}</option>'
            for at, name in enumerate(names)
        )

    tokens = [f"{at} {token_text(run.bytes_of(number))}" for at, number in enumerate(run.ids)]
    heads = [str(head) for head in range(run.config.n_head)]
    focus = run.focus
    return (
        '<form class="choice needs-script" id="score-choice">'
        f'<label>head <select name="head">{options(heads, focus.head)}</select></label>'
        f'<label>query <select name="query">{options(tokens, focus.position)}</select></label>'
        f'<label>key <select name="key">{options(tokens, focus.key)}</select></label></form>'
    )


def _strips(run: Run, layer: str) -> str:
    names = {"q": "queries", "k": "keys", "v": "values"}
    head = run.focus.head
    return "".join(
        strip(f"{layer}.{letter}", f"{name} of head {head}", run.arrays[f"{layer}.{letter}"][head])
        for letter, name in names.items()
    )


def _sentence(run: Run) -> str:
    focus = run.focus
    query, key = (token(run.bytes_of(run.ids[at])) for at in (focus.position, focus.key))
    return (
        f"Head {focus.head}: how much does token {focus.position} {query} look at token "
        f"{focus.key} {key}?"
    )


def _terms(numbers: Numbers) -> str:
    parts = ("query", "key", "terms", "sums")
    rows = [
        (str(at), *(numbers.show(f"score.{part}", at) for part in parts))
        for at in range(len(numbers.arrays["score.terms"]))
    ]
    head = ("d", "query", "key", "product", "sum so far")
    return (
        f'<div id="score-terms">{table(head, rows, "The score, term by term", kind="tall")}</div>'
    )


def _row(run: Run, numbers: Numbers) -> str:
    parts = (("scores", "4g"), ("exp", "4g"), ("softmax", "p"), ("pattern", "p"))
    rows = [
        (
            f"{at} {token(run.bytes_of(run.ids[at]))}",
            *(numbers.show(f"row.{part}", at, as_=as_) for part, as_ in parts),
        )
        for at in range(run.focus.position + 1)
    ]
    head = ("key", "score", "exp(score − max)", "÷ their sum", "the forward pass’s weight")
    return f'<div id="score-row">{table(head, rows, "The weights of one query", kind="tall")}</div>'
