"""Checkers of the exercises in 1_text_to_ids.ipynb."""

from collections.abc import Callable

from checks.examples import bundled, story
from gpt2np import Tokenizer


def characters_per_token(answer: Callable[[Tokenizer, str], float]) -> str | None:
    tokenizer = bundled().tokenizer
    for text in ("hello", "ééé", story()):
        result, expected = (
            answer(tokenizer, text),
            len(text) / len(tokenizer.encode(text)),
        )
        if result is None:
            return "Return the number of characters divided by the number of ids."
        if abs(result - expected) > 1e-6:
            of_bytes = expected * len(text.encode()) / len(text)
            hint = " Characters, not bytes?" if abs(result - of_bytes) < 1e-6 else ""
            return (
                f"For {text[:8]!r}…, expected {expected:.3f}, got {result:.3f}.{hint}"
            )
    return None


def first_merge(
    answer: Callable[[Tokenizer, str], tuple[str, str] | None],
) -> str | None:
    tokenizer = bundled().tokenizer
    expected = {
        " created": ("r", "e"),
        " was": ("Ġ", "w"),
        "soul": ("o", "u"),
        "GPT": None,
        "z": None,
    }
    for piece, pair in expected.items():
        result = answer(tokenizer, piece)
        if result is None and piece == " created":
            return "tokenizer.trace_merges(piece)[0].steps[0] has the tokens and the chosen pair."
        if result is None and pair is not None:
            return f"For {piece!r}, expected {pair}, got None; `chosen` can be 0."
        if result != pair:
            return f"For {piece!r}, expected {pair}, got {result}; see the first step."
    return None


def is_concatenation(answer: Callable[[Tokenizer, str, str], bool]) -> str | None:
    tokenizer = bundled().tokenizer
    expected = {
        ("the", " fox"): True,
        ("the ", "fox"): False,
        ("fo", "x"): False,
        ("he", "llo"): True,
        ("wa", "s"): False,
        ("It", "'s"): True,
        ("An", "y"): False,
    }
    for (left, end), value in expected.items():
        result = answer(tokenizer, left, end)
        if result is None:
            return "Compare the ids of left + right with the joined ids of left and of right."
        if bool(result) != value:
            whole, parts = (
                tokenizer.encode(left + end),
                map(tokenizer.encode, (left, end)),
            )
            return f"For {left!r} and {end!r}, expected {value}: {whole} against {[*parts]}."
    return None


def safe_prompt(answer: Callable[[Tokenizer, str], list[int]]) -> str | None:
    tokenizer = bundled().tokenizer
    for text in ("A fox", "", "<|endoftext|>", "a<|endoftext|>b"):
        result = answer(tokenizer, text)
        if result is None:
            return "Return a list: tokenizer.eos_token_id, followed by the ids of the text."
        if list(result) != [
            tokenizer.eos_token_id,
            *tokenizer.encode(text, disallowed_special=()),
        ]:
            return f"For {text!r}: one special token first, then the visitor's text as plain text."
    return None
