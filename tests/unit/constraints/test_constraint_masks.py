"""Token masks against a test of every token; texts that follow the masks."""

import random
import time
import tracemalloc
import weakref

import numpy as np
import pytest
import regex
from helpers.oracle import TokenTable, can_lead_to_match

from gpt2np import Tokenizer
from gpt2np.constraints import syntax, text_constraint, token_mask
from gpt2np.constraints.syntax import parse
from gpt2np.errors import InvalidArgumentError

END = 50256


@pytest.fixture(scope="module")
def tokens(gpt2_vocabulary):
    """GPT-2's tokens, id → bytes, without <|endoftext|>."""
    table = Tokenizer.load(gpt2_vocabulary).vocabulary.token_bytes
    return {number: data for number, data in table.items() if number != END}


TABLES = {}


def constraint(tokens, rows=END + 1, ends=(END,), **options):
    table = TABLES.setdefault(id(tokens), TokenTable(tokens))
    return text_constraint(table, rows, frozenset(ends), **options)


def after(state, tokens, text):
    """Advance a constraint by the bytes of `text`, one token per byte."""
    single = {data[0]: number for number, data in tokens.items() if len(data) == 1}
    for byte in text if isinstance(text, bytes) else text.encode():
        state = state.advance(single[byte])
    return state


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (r"(?:yes|no|né)\.?", ["", b"n\xc3"]),
        (r"[é漢😀]{2,3}", [b"\xe6\xbc", "漢é"]),
        (r"[^\W\d]+(?: \w+){0,2}", ["the"]),
        (r"-?(?:0|[1-9]\d{0,2})(?:\.\d+)?", ["12"]),
        (r'\{"name": "[^"\n]{1,20}", "age": [0-9]{1,3}\}', ['{"name": "Æt']),
        (r"(?:.|\n)*", [""]),
    ],
)
def test_masks_equal_trying_tokens(tokens, pattern, texts):
    start = constraint(tokens, regex=pattern)
    for text in texts:
        data = text if isinstance(text, bytes) else text.encode()
        mask = after(start, tokens, text).allowed()
        assert mask.shape == (END + 1,) and mask.dtype == bool
        some = [*range(500), *range(500, END, 11)]  # all single bytes, and every eleventh token
        expected = [can_lead_to_match(pattern, data + tokens[number]) for number in some]
        wrong = np.flatnonzero(mask[some] != expected)
        assert not len(wrong), [tokens[some[number]] for number in wrong[:5]]
        matches = isinstance(text, str) and regex.fullmatch(pattern, text) is not None
        assert mask[END] == matches


def test_choices(tokens):
    texts = (" yes", " no", " nothing", " 漢字")
    start = constraint(tokens, choices=texts)
    expected = [any(text.encode().startswith(tokens[i]) for text in texts) for i in range(END)]
    assert start.allowed()[:END].tolist() == expected and not start.allowed()[END]
    no = after(start, tokens, " no")
    assert no.allowed()[END] and not no.complete
    assert after(start, tokens, " nothing").complete
    assert after(start, tokens, " yes").allowed().nonzero()[0].tolist() == [END]
    assert not after(start, tokens, " n\xc3").allowed().any()


def test_what_ran_before_makes_no_difference(tokens, monkeypatch):
    """Each of the 2⁷ endings has a state, more than are allowed; a result depends on no other."""
    monkeypatch.setattr(syntax, "MAX_WORK", 60_000)
    few = {number: data for number, data in tokens.items() if len(data) < 3}
    start, known = constraint(few, regex="[ab]*a[ab]{7}c"), []
    rng = random.Random(4)
    texts = ["".join(rng.choices("ab", k=12)) for _ in range(60)]
    for text in texts:
        state = after(start, few, text)
        known.append((state, state.allowed().copy()))
    monkeypatch.undo()
    alone = constraint(dict(few), regex="[ab]*a[ab]{7}c")
    for text, (state, mask) in zip(texts, known, strict=True):
        assert (mask == after(alone, few, text).allowed()).all()
        assert mask[66] == (text[-8] == "a")  # c
        assert (state.allowed() == mask).all() and state.advance(66).complete == mask[66]


def test_one_id_that_takes_too_many_states(tokens, monkeypatch):
    start = constraint(dict(tokens), regex=r"(?:\w|a)*a\w{9}")
    monkeypatch.setattr(syntax, "MAX_WORK", 200_000)
    with pytest.raises(InvalidArgumentError, match="too large, with repetitions"):
        after(start, tokens, "xaxxa").allowed()


@pytest.mark.parametrize(
    "pattern",
    [
        *("(?:a{30000}){30000}", "(?:a?){999999999}"),
        *("a" * 1_000_000, "()" * 1_000_000),
        "".join(rf"[\w{chr(i)}]" for i in range(0xAC00, 0xAC00 + 10_000)),
        rf"(?:(?:x(?:{'|'.join(map(str, range(9000)))}))?){{20000}}",
    ],
)
def test_too_large_is_refused_at_once(tokens, pattern):
    started = time.process_time()
    with pytest.raises(InvalidArgumentError, match="too large"):
        constraint(tokens, regex=pattern)
    assert time.process_time() - started < 10  # 12 s to minutes, without the limits


def test_masks_are_freed_with_their_constraint(tokens):
    masks = weakref.ref(constraint(tokens, regex="a{2,3}").masks)
    text_constraint.cache_clear()
    assert masks() is None  # at once, without the garbage collector


def test_a_large_bound_costs_nothing(tokens):
    state = constraint(tokens, regex="a{0,999999999}(?:b{0,99999}c)?")
    mask = after(state, tokens, "aaab").allowed()
    assert mask[[65, 66]].all() and not mask[[64, END]].any()  # b and c; not a


def test_pattern_is_compiled_once_for_many_prompts(tokens, monkeypatch):
    compiled = []
    monkeypatch.setattr(token_mask, "parse", lambda p: compiled.append(p) or parse(p))
    for _ in range(100):
        constraint(tokens, regex="[a-z]{1,900}x")
    assert compiled == ["[a-z]{1,900}x"]


def test_states_are_shared_and_stay_as_they_are(tokens):
    start = constraint(tokens, regex="ab*|c")
    before = start.allowed().copy()
    a, c = after(start, tokens, "a"), after(start, tokens, "c")
    assert (start.allowed() == before).all() and c.complete and not a.complete
    assert (after(a, tokens, "b").allowed() == a.allowed()).all()
    assert a.advance(END) is a
    with pytest.raises(ValueError, match="read-only"):
        start.allowed()[0] = True


def test_rows_without_a_token_and_beyond_the_vocabulary(tokens):
    mask = constraint(tokens, rows=50_304, ends=(END, 99_999), regex=".*").allowed()
    assert mask.shape == (50_304,) and not mask[END + 1 :].any() and mask[END]


def test_special_tokens_are_no_text(tokens):
    table = {**tokens, END: b"<|endoftext|>", END + 1: b"<|pad|>"}
    ends, pattern = frozenset([END]), r"<\|\w+\|>"
    special = {"<|endoftext|>": END, "<|pad|>": END + 1}
    mask = text_constraint(TokenTable(table, special), END + 2, ends, regex=pattern).allowed()
    assert not mask[END] and not mask[END + 1] and mask[27]  # <
    assert text_constraint(TokenTable(table), END + 2, ends, regex=pattern).allowed()[END + 1]


NOTHING = [r"[^\s\S]", r"a[^\d\D]", r"a[^\s\S]+b", r"\ud800", r"(?:[^\w\W]|[^\d\D])x"]


@pytest.mark.parametrize("given", [*({"regex": pattern} for pattern in NOTHING), {"choices": ()}])
def test_what_nothing_matches_is_refused(tokens, given):
    with pytest.raises(InvalidArgumentError, match="no text matches"):
        constraint(tokens, **given)


def test_a_vocabulary_that_lacks_bytes(tokens):
    some = {number: data for number, data in tokens.items() if data not in (b"\xc3", b"a")}
    with pytest.raises(InvalidArgumentError, match="lacks 2 of them, such as 0x61"):
        constraint(some, regex="b")


@pytest.mark.parametrize("share", [10, pytest.param(1, marks=pytest.mark.slow)])
def test_many_readings_take_bounded_time_and_memory(tokens, share, monkeypatch):
    """800 alternatives, nearly all of which remain after each letter; without `slow`, a tenth."""
    letters = [random.Random(row).choice("abcdefghijklmnopqrstuvwxyz") for row in range(800)]
    many_readings = "|".join(f"[^{letter}]" * 30 for letter in letters[::share])
    monkeypatch.setattr(syntax, "MAX_WORK", syntax.MAX_WORK // share)
    started = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgumentError, match="too large, with repetitions"):
            constraint(tokens, regex=many_readings)
        assert tracemalloc.get_traced_memory()[1] < (400 << 20) // share
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < 60 / share
