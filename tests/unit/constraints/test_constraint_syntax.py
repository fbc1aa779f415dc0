"""Supported patterns, and the error messages for all others."""

import pytest
import regex
from helpers.oracle import read
from hypothesis import given
from hypothesis import strategies as st

from gpt2np.constraints.automaton import MATCHED, ByteAutomaton
from gpt2np.constraints.syntax import MAX_DEPTH, parse
from gpt2np.errors import InvalidArgumentError

TEXTS = [*"ab]^-.{}()|*+?$\\1\b\n\té漢", "", "aa", "ab", "aab", "aaa", "aaaa", "abab", "a{", "b]"]


SUPPORTED = r"""
    []a] [^]a] [a-] [-a] [\]a] [a\-b] [a^] [.*+?(){}|$] [a-aé] [\b] [\n\t] [^\s] [\w] [漢-漣]
    [a\]b]+ [\[a] \\ \. \- \é ] } \{\} ^ab$ ^$ |a a| (|a)b () a|b|ab (?:a|b)* (?P<name>a)b
    (?<n_1>a) a{2} a{,2} a{2,} a{2,3} a{0} a{,} a{01} (?:ab){1,2} a*?b a+? a?? \x61 \u0061
    \U00000061 \p{Lu} \P{L} \pL \p{Script=Han} \p{^L}
"""


@pytest.mark.parametrize("pattern", [*SUPPORTED.split(), "", r"\ "])
def test_understood_as_by_regex(pattern):
    automaton = ByteAutomaton(parse(pattern))
    for text in TEXTS:
        end = read(automaton, automaton.start, text.encode())
        matches = MATCHED in automaton.readings[end]
        assert matches == (regex.fullmatch(pattern, text) is not None), text


@pytest.mark.parametrize("pattern", ["ab", "a|b", "(a|b){2}", r"a\$", "[^a]", ""])
def test_anchors_at_both_ends_do_nothing(pattern):
    assert parse(f"^{pattern}") == parse(f"{pattern}$") == parse(f"^{pattern}$") == parse(pattern)


GROUPS = ["(?=b)", "(?!b)", "(?<=a)b", "(?<!a)b", "(?i)a", "(?s:a)", "(?>a)", "(?P=n)", "(?#a)"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        *((pattern, f"at offset 0: {pattern[:3]} is not supported") for pattern in GROUPS),
        *((f"a{escape}", f"at offset 1: {escape} is not") for escape in [r"\1", r"\b", r"\Z"]),
        ("a^b", "at offset 1: ^ within the pattern is not supported"),
        *((pattern, "at offset 2: ") for pattern in ["(a$)", "a|^b"]),
        *((pattern, "at offset 1: ") for pattern in ["a$|b", "^^a", "a$$", "a^"]),
        ("a*+", "at offset 2: + after a quantifier"),
        ("[[:alpha:]]", "at offset 1: [: in a set (a literal sign needs a \\)"),
        ("[a--b]", "-- in a set"),
        ("[a&&b]", "&& in a set"),
        ("(a", "at offset 0: ( is not closed"),
        ("a)", "at offset 1: unbalanced )"),
        ("[a", "at offset 0: [ is not closed"),
        ("[z-a]", "at offset 1: z-a is not a range"),
        (r"[a-\d]", "not a range"),
        ("*a", "at offset 0: nothing to repeat before *"),
        ("a|+", "nothing to repeat before +"),
        ("a**", "repetition of a repetition"),
        ("a{2}{3}", "repetition of a repetition"),
        ("a{3,2}", "at least 3 and at most 2"),
        ("a{x}", r"write \{"),
        ("a{" + "9" * 5000 + "}", r"write \{"),
        (r"\y", r"at offset 0: \y is not"),
        (r"\x4", "needs 2 hex digits"),
        (r"\p{Nonsense}", "unknown Unicode property"),
        (r"\p", "unknown Unicode property"),
        ("(" * (MAX_DEPTH + 1) + "a" + ")" * (MAX_DEPTH + 1), "nested groups"),
    ],
)
def test_refused_in_one_line(pattern, message):
    with pytest.raises(InvalidArgumentError) as caught:
        parse(pattern)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250
    assert message in str(caught.value)


@given(st.text("ab(){}[]|*+?.^$\\-,:<>P=!012dwsxpé\n", max_size=12))
def test_any_text_is_a_pattern_or_refused(pattern):
    try:
        automaton = ByteAutomaton(parse(pattern))
    except InvalidArgumentError:
        return
    regex.compile(pattern)  # a supported pattern is a pattern of regex, too
    assert automaton.start >= 0
