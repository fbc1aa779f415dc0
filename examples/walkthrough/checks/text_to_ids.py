"""Checkers of the exercises in 1_text_to_ids.ipynb."""

from collections.abc import Callable

from checks.examples import bundled, story
from gpt2np import Tokenizer


def characters_per_token(answer: Callable[[Tokenizer, str], float]) -> str | None:
    tokenizer = bundled().tokenizer
    for text in ("hello", "ééé", story()):
        found, right = answer(tokenizer, text), len(text) / len(tokenizer.encode(text))
        if found is None:
            return "Return the number of characters divided by the number of ids."
        if abs(found - right) > 1e-6:
            of_bytes = right * len(text.encode()) / len(text)
            ask = " Characters, not bytes?" if abs(found - of_bytes) < 1e-6 else ""
            return f"For {text[:8]!r}… it is {right:.3f}, not {found:.3f}.{ask}"
    return None


def first_merge(
    answer: Callable[[Tokenizer, str], tuple[str, str] | None],
) -> str | None:
    tokenizer = bundled().tokenizer
    right = {
        " created": ("r", "e"),
        " was": ("Ġ", "w"),
        "soul": ("o", "u"),
        "GPT": None,
        "z": None,
    }
    for piece, pair in right.items():
        found = answer(tokenizer, piece)
        if found is None and piece == " created":
            return "tokenizer.trace_merges(piece)[0].steps[0] has the tokens and the chosen pair."
        if found is None and pair is not None:
            return f"For {piece!r} it is {pair}, not None. `chosen` may be 0."
        if found != pair:
            return f"For {piece!r} it is {pair}, not {found}. The chosen pair is the first merge."
    return None


def joins(answer: Callable[[Tokenizer, str, str], bool]) -> str | None:
    tokenizer = bundled().tokenizer
    right = {
        ("the", " fox"): True,
        ("the ", "fox"): False,
        ("fo", "x"): False,
        ("he", "llo"): True,
        ("wa", "s"): False,
        ("It", "'s"): True,
        ("An", "y"): False,
    }
    for (left, end), value in right.items():
        found = answer(tokenizer, left, end)
        if found is None:
            return "Compare the ids of left + right with those of left followed by those of right."
        if bool(found) != value:
            whole, parts = (
                tokenizer.encode(left + end),
                map(tokenizer.encode, (left, end)),
            )
            return (
                f"For {left!r} and {end!r} it is {value}: {whole} against {[*parts]}."
            )
    return None


def prompt_for(answer: Callable[[Tokenizer, str], list[int]]) -> str | None:
    tokenizer = bundled().tokenizer
    for text in ("A fox", "", "<|endoftext|>", "a<|endoftext|>b"):
        found = answer(tokenizer, text)
        if found is None:
            return "Return a list: tokenizer.eos_token_id, and after it the ids of the text."
        if list(found) != [
            tokenizer.eos_token_id,
            *tokenizer.encode(text, disallowed_special=()),
        ]:
            return f"{text!r}: one special token in front; all that the user typed is plain text."
    return None
