"""Stop regexes: the same result wherever the pieces are cut, and no endless search."""

import time

import pytest

from gpt2np import InvalidArgumentError, Tokenizer
from gpt2np.data import untrusted_regex
from gpt2np.generation.detokenizer import StreamingDetokenizer
from gpt2np.generation.options import GenerationOptions
from gpt2np.generation.stop_regex import StopPatterns, compile_stop_regex


def set_seconds(monkeypatch, seconds):
    """Set the time limit of a search."""
    monkeypatch.setattr(untrusted_regex, "_MAX_SECONDS", seconds)


def run(pattern, pieces):
    """Return the text that passed, the match, and the number of pieces; None for the end."""
    patterns, passed = StopPatterns([], [pattern]), ""
    for number, piece in enumerate(pieces, 1):
        passed += patterns.push(piece)
        if patterns.stop_text is not None:
            return passed, patterns.stop_text, number
    return passed + patterns.finish(), patterns.stop_text, None


@pytest.mark.parametrize(
    ("pattern", "pieces", "expected"),
    [
        (r"cat\b", ["a cat", "egory"], ("a category", None, None)),
        (r"cat\b", ["a cat", " sat"], ("a ", "cat", 2)),
        (r"cat\b", ["a cat"], ("a ", "cat", None)),
        (r"cat\B", ["a cat", "egory"], ("a ", "cat", 2)),
        ("end$", ["the end", " of"], ("the end of", None, None)),
        ("end$", ["the end\n", "of"], ("the end\nof", None, None)),
        ("end$", ["the end\n"], ("the ", "end", None)),
        ("(?m)end$", ["the end", "\nof"], ("the ", "end", 2)),
        (r"\bend", ["the end", "s"], ("the ", "end", 1)),  # final: no next character can undo it
        ("foo(?=bar)", ["foo", "ba", "r"], ("", "foo", 3)),
        (r"[.!?]", ["Yes.", " No"], ("Yes", ".", 1)),
        (r"\d+", ["1", "2"], ("", "1", 1)),
        ("^b", ["a", "b"], ("ab", None, None)),
        ("(?m)^b", ["line", "\nb"], ("line\n", "b", 2)),
        ("(?<=X)a", ["X", "ab"], ("X", "a", 2)),
    ],
)
def test_by_hand(pattern, pieces, expected):
    assert run(pattern, pieces) == expected


@pytest.mark.parametrize(
    "pattern",
    [
        r"cat\b",
        r"\bcat\B",
        "cat$",
        "(?m)cat$",
        r"t\b.?c",
        r"\w+\Z",
    ],
)
@pytest.mark.parametrize("text", ["a category", "cat\ncat", "the cat\n", "cats, cat", "a cat c"])
def test_results_do_not_depend_on_the_pieces(pattern, text):
    whole = run(pattern, [text])[0]
    for cut in range(1, len(text)):
        assert run(pattern, [text[:cut], text[cut:]])[0] == whole
    assert run(pattern, list(text))[0] == whole


@pytest.mark.parametrize(
    "pattern",
    [
        "(" * 3000 + "a" + ")" * 3000,
        "(?:(?:(?:a?){1000}){1000}){1000}x",  # fills the memory if compiled
        "a{" + "9" * 5000 + "}",
        "(?V1)(?:a{400}[[b])]){400}",
        "(){99999}",  # minutes, because compiling empty groups takes quadratic time
        "a" * 100_001,
        *("(?R)x", "(x(?1))", "(?P<n>x(?&n))", "(?P<n>x(?P>n))", "(x)(?-1)"),  # recursion
    ],
)
def test_too_large(pattern):
    with pytest.raises(InvalidArgumentError, match=r"stop_regex .* (too large|not a regular)"):
        compile_stop_regex(pattern)


def test_many_patterns_are_as_large_as_one():
    patterns = [f"(?:a?){{9999}}{i}" for i in range(1000)]
    started = time.process_time()
    with pytest.raises(InvalidArgumentError, match=r"stop_regex .* too large"):
        GenerationOptions(stop_regex=patterns)
    assert time.process_time() - started < 5


def test_negative_look_ahead_is_refused():
    compile_stop_regex(r"[(?!b]a\(?!")  # no look-ahead
    with pytest.raises(InvalidArgumentError, match="has a negative look-ahead"):
        compile_stop_regex("foo(?!bar)")


def test_too_slow_for_the_empty_text(monkeypatch):
    """Refused before the first token."""
    set_seconds(monkeypatch, 0.05)
    with pytest.raises(InvalidArgumentError, match=r"took more than 0.05 s .* in a text of 0 char"):
        GenerationOptions(stop_regex=[r"(?:(?:a?|b?)(?:|c?)){40}\B$(?<=x)"])


def test_a_search_without_end(monkeypatch):
    set_seconds(monkeypatch, 0.05)
    patterns, started = StopPatterns([], ["(a|aa)+$b"]), time.perf_counter()
    with pytest.raises(InvalidArgumentError, match=r"took more than 0.05 s .*: '\(a\|aa\)\+\$b'"):
        patterns.push("a" * 48)
    assert time.perf_counter() - started < 60  # hours without the time limit
    assert patterns.finish() == "a" * 48 and patterns.stop_text is None


@pytest.mark.parametrize("pattern", [r"(?<=x)", r"(?<=x)(?= )"])
def test_a_match_without_characters_ends_the_text(pattern):
    tokenizer = Tokenizer.load("bundled")
    detokenizer = StreamingDetokenizer(tokenizer, GenerationOptions(stop_regex=pattern))
    for token_id in tokenizer.encode("the fox ran far"):
        detokenizer.push(token_id)
    detokenizer.finish()
    assert (detokenizer.text, detokenizer.stop_text) == ("the fox", "")
    assert detokenizer.stop_reason("stop", [5]) == ""
