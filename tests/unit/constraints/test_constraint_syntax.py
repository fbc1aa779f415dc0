"""Supported patterns, and the error messages for all others."""

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from gpt2np.constraints.automaton import MATCHED, ByteAutomaton
from gpt2np.constraints.syntax import MAX_DEPTH, parse
from gpt2np.errors import InvalidArgumentError

TEXTS = [*"ab]^-.{}()|*+?$\\1\b\n\té漢", "", "aa", "ab", "aab", "aaa", "aaaa", "abab", "a{", "b]"]


@pytest.mark.parametrize(
    "pattern",
    [
        *["[]a]", "[^]a]", "[a-]", "[-a]", r"[\]a]", r"[a\-b]", "[a^]", "[.*+?(){}|$]", "[a-aé]"],
        *[
            r"[\b]",
            r"[\n\t]",
            r"[^\s]",
            r"[\w]",
            "[漢-漣]",
            r"\\",
            r"\.",
            r"\-",
            r"\é",
            r"\ ",
            "]",
            "}",
        ],
        *[
            "^ab$",
            "^$",
            "",
            "|a",
            "a|",
            "(|a)b",
            "()",
            "a|b|ab",
            "(?:a|b)*",
            "(?P<name>a)b",
            "(?<n_1>a)",
        ],
        *["a{2}", "a{,2}", "a{2,}", "a{2,3}", "a{0}", "(?:ab){1,2}", "a{01}", "a*?b", "a+?", "a??"],
        *[
            r"\x61",
            r"\u0061",
            r"\U00000061",
            r"\p{Lu}",
            r"\P{L}",
            r"\pL",
            r"\p{Script=Han}",
            r"\p{^L}",
        ],
        *[r"\{\}", "a{,}", r"[a\]b]+", r"[\[a]"],
    ],
)
def test_understood_as_by_regex(pattern):
    automaton = ByteAutomaton.of(parse(pattern))
    for text in TEXTS:
        end = automaton.after(automaton.start, text.encode())
        matches = MATCHED in automaton.readings(end)
        assert matches == (regex.fullmatch(pattern, text) is not None), text


@pytest.mark.parametrize("pattern", ["ab", "a|b", "(a|b){2}", r"a\$", "[^a]", ""])
def test_anchors_at_both_ends_do_nothing(pattern):
    assert parse(f"^{pattern}") == parse(f"{pattern}$") == parse(f"^{pattern}$") == parse(pattern)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"(a)\1", "unsupported syntax at offset 3: back-references"),
        ("a(?=b)", "unsupported syntax at offset 1: look-ahead"),
        ("a(?!b)", "look-ahead"),
        ("(?<=a)b", "look-behind"),
        ("(?<!a)b", "look-behind"),
        ("a^b", "unsupported syntax at offset 1: anchors other than a leading ^ and"),
        ("(a$)", "anchors other than a leading ^ and a trailing $"),
        ("a$|b", "anchors other than a leading ^ and a trailing $"),
        (r"\bab", "anchors other than a leading ^ and a trailing $"),
        ("a|^b", "anchors other than a leading ^ and a trailing $"),
        ("^^a", "unsupported syntax at offset 1: anchors"),
        ("a$$", "unsupported syntax at offset 1: anchors"),
        ("a^", "anchors"),
        ("$a", "anchors"),
        (r"a\Z", "anchors other than a leading ^ and a trailing $"),
        ("(?i)a", "flags"),
        ("(?s:a)", "flags"),
        ("(?>a)", "atomic"),
        ("a*+", "possessive"),
        ("(?P=n)", "back-references"),
        ("(?#a)", "comments"),
        ("[[:alpha:]]", "named classes"),
        ("[a--b]", "set operations"),
        ("[a&&b]", "set operations"),
        ("(a", "malformed at offset 0: ( is not closed"),
        ("a)", "malformed at offset 1: unbalanced )"),
        ("[a", "malformed at offset 0: [ is not closed"),
        ("[]", "[ is not closed"),
        ("[z-a]", "malformed at offset 1: z-a is not a range"),
        (r"[a-\d]", "not a range"),
        ("*a", "malformed at offset 0: nothing to repeat before *"),
        ("a|+", "nothing to repeat before +"),
        ("^*", "nothing to repeat"),
        ("a**", "repetition of a repetition"),
        ("a{2}{3}", "repetition of a repetition"),
        ("a{3,2}", "at least 3 and at most 2"),
        ("a{x}", r"write \{"),
        ("a{" + "9" * 5000 + "}", "repetition counts too large"),
        ("a\\", "unknown escape \\"),
        (r"\y", r"unknown escape \y"),
        (r"\x4", "needs 2 hex digits"),
        (r"\U00110000", "needs 8 hex digits"),
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
        automaton = ByteAutomaton.of(parse(pattern))
    except InvalidArgumentError:
        return
    regex.compile(pattern)  # a supported pattern is a pattern of regex, too
    assert automaton.start >= 0
