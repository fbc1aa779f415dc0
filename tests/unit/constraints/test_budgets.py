"""Constraints that finish: every text matches within `max_new_tokens`, or there is an error."""

import asyncio
import random

import numpy as np
import pytest
import regex
from helpers.oracle import TokenTable

from gpt2np import InvalidArgumentError
from gpt2np.constraints import text_constraint

LETTERS = [b"a", b"b", b"ab", b"ba", b"aab", b"bbb", "é".encode(), b"a\xc3"]
TOKENS = dict(enumerate([*LETTERS, *(bytes([i]) for i in range(256) if bytes([i]) not in LETTERS)]))
END = len(TOKENS)
TABLE = TokenTable(TOKENS)


def constraint(pattern, **options):
    return text_constraint(TABLE, END + 1, frozenset([END]), regex=pattern, **options)


def random_pattern(rng, depth=3):
    """Return a random pattern of a, b and é."""
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(["a", "b", "é", "[ab]", "[aé]", "ab"])
    parts = [random_pattern(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    group = rng.choice(["({})", "({})", "({}|b)", "({}|)"]).format("".join(parts))
    return group + rng.choice(["", "", "?", "*", "+", "{2}", "{1,3}", "{3,}", "{4}"])


@pytest.mark.parametrize("n", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_every_text_matches_or_the_error_comes_first(n):
    rng = random.Random(n)
    n_errors = 0
    for _ in range(n):
        pattern, budget = random_pattern(rng), rng.randint(1, 10)
        try:
            state = constraint(pattern).within(budget)
        except InvalidArgumentError:
            n_errors += 1
            continue
        data = b""
        for _ in range(budget):
            token_id = int(rng.choice(np.flatnonzero(state.allowed())))
            if token_id == END:
                break
            data += TOKENS[token_id]
            state = state.advance(token_id)
            if state.complete:
                break
        assert regex.fullmatch(pattern, data.decode()), (pattern, budget, data)
    assert 0.05 * n < n_errors < 0.8 * n


def test_tokens_of_the_match_with_the_fewest_bytes_are_counted():
    start = constraint("(?:aab){5}")
    with pytest.raises(InvalidArgumentError, match="needs 5;"):
        start.within(4)
    state, n = start.within(5), 0
    while not state.complete:
        state, n = state.advance(int(np.flatnonzero(state.allowed())[-1])), n + 1
    assert n == 5
    assert constraint("c(?:aab|xyz)").within(2)  # of alternatives with as many bytes, the first


PATTERN = r"(?: [a-z]+){2,40}[.!]"


def test_in_a_batch_a_stream_and_a_full_context(lm):
    options = {"regex": PATTERN, "seed": 3, "max_new_tokens": 6}
    alone = lm.generate("The king", **options)
    assert regex.fullmatch(PATTERN, alone.text)
    batch = lm.generate_batch(["The king", "It was"], **options)
    assert batch[0].text == alone.text and regex.fullmatch(PATTERN, batch[1].text)
    stream = lm.stream("The king", **options)
    assert "".join(stream) == alone.text
    assert asyncio.run(lm.agenerate("The king", **options)) == alone
    n = lm.model.config.n_positions - 5
    full = lm.generate([5] * n, regex=PATTERN, seed=1)
    assert regex.fullmatch(PATTERN, full.text) and len(full.ids) <= 6
    with pytest.raises(InvalidArgumentError, match="or shorten the prompt"):
        lm.generate([5] * (n + 5), regex=PATTERN, seed=1)


def test_stop_text_and_stop_id_end_a_constrained_text(lm):
    """As in vLLM: the stop wins, and `stop_reason` names it."""
    unstopped = lm.generate("It was", regex=PATTERN, seed=1)
    for stop in ({"stop": ["e", "."]}, {"stop_token_ids": unstopped.ids[2:3]}):
        completion = lm.generate("It was", regex=PATTERN, seed=1, **stop)
        assert completion.finish_reason == "stop"
        assert completion.stop_reason in next(iter(stop.values()))
        assert regex.fullmatch(PATTERN, completion.text, partial=True)
        assert unstopped.text.startswith(completion.text) and completion.text != unstopped.text


def test_special_stop_id_is_allowed_where_the_text_matches(lm):
    [(_, special), *_] = lm.tokenizer.special_tokens.items()
    options = {"regex": "a{1,40}", "stop_token_ids": [special], "logit_bias": {special: 99}}
    assert lm.generate("It was", seed=1, **options).text == "a"
