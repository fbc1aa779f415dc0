"""Check the exercises of the walkthrough.

In an exercise the reader writes a function. Its checker has the same name, in the module named
after the notebook. The checker calls the answer with examples and returns a hint, or None if all
results are correct.
"""

from collections.abc import Callable
from inspect import getmembers, isfunction
from typing import Any

from checks import (
    attention,
    does_it_know_anything,
    ids_to_vectors,
    it_learns,
    learning_a_vocabulary,
    logits_to_text,
    text_to_ids,
    texts_and_probabilities,
    the_block,
    why_it_is_fast,
)
from gpt2np.errors import did_you_mean

Answer = Callable[..., Any]

NOTEBOOKS = (
    texts_and_probabilities,
    text_to_ids,
    learning_a_vocabulary,
    ids_to_vectors,
    attention,
    the_block,
    logits_to_text,
    why_it_is_fast,
    does_it_know_anything,
    it_learns,
)
CHECKERS: dict[str, Callable[[Answer], str | None]] = {
    name: checker
    for module in NOTEBOOKS
    for name, checker in getmembers(module, isfunction)
    if checker.__module__ == module.__name__ and not name.startswith("_")
}


def check(answer: Answer) -> None:
    """Print "solved.", a hint, or for an answer without a body "not yet." alone."""
    code = getattr(answer, "__code__", _stub.__code__).co_code
    if code == _stub.__code__.co_code and answer.__name__ in CHECKERS:
        print(f"{answer.__name__}: not yet.")
        return
    hint = hint_for(answer)
    print(f"{answer.__name__}: " + ("solved." if hint is None else f"not yet. {hint}"))


def _stub() -> None: ...


def hint_for(answer: Answer) -> str | None:
    """Return a hint of one line, or None if the answer is correct."""
    name = answer.__name__
    if name not in CHECKERS:
        return f"There is no exercise {name!r}{did_you_mean(name, CHECKERS)}"
    try:
        return CHECKERS[name](answer)
    except Exception as error:  # a reader's function can raise anything
        return f"It raised {type(error).__name__}: {error}".splitlines()[0]
