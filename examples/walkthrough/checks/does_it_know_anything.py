"""Checkers of the exercises in 8_does_it_know_anything.ipynb."""

import math
from collections.abc import Callable

import numpy as np

from checks.examples import bundled, story, story_ids
from gpt2np import LanguageModel
from gpt2np.evaluation.perplexity import perplexity
from gpt2np.interp import zero_head
from gpt2np.model import Hook
from gpt2np.model.ops import softmax

Loss = Callable[[Hook | None], float]


def bits_per_character(answer: Callable[[LanguageModel, str], float]) -> str | None:
    lm = bundled()
    for text in (story(2)[:300], "A fox.", "Café"):
        found = answer(lm, text)
        if found is None:
            return "Add up -log_probabilities, divide by ln 2 and by the number of characters."
        if np.isnan(found):
            return "Without from_end_of_text=True the first token has no probability."
        right = perplexity(lm, [text], from_end_of_text=True).bits_per_character
        if abs(found - right) > 1e-4:
            mistakes = {
                -right: " The logarithms are negative; bits are not.",
                right * math.log(2): " Bits, not nats?",
                right * len(text) / len(text.encode()): " Characters, not bytes?",
            }
            return f"For {text[:8]!r}… it is {right:.3f}, not {found:.3f}.{_asks(mistakes, found)}"
    return None


def _asks(mistakes: dict[float, str], found: float) -> str:
    """What to ask of an answer that a mistake leads to."""
    return next((ask for end, ask in mistakes.items() if abs(found - end) < 1e-4), "")


def most_surprising(answer: Callable[[LanguageModel, str], int]) -> str | None:
    for number in (0, 4):
        text = story(number)[:400]
        found = answer(bundled(), text)
        if found is None:
            return "It is the token with the lowest log probability."
        score = bundled().score(text, from_end_of_text=True)
        right = int(score.log_probabilities.argmin())
        if found != right:
            nan = " Without from_end_of_text=True the first entry is NaN, and argmin takes it."
            return (
                f"For one text it is token {right}, not {found}.{'' if found else nan}"
            )
    return None


def likelier(answer: Callable[[LanguageModel, str, str, str], str]) -> str | None:
    for prompt, right, wrong in (
        ("Once upon a", " time", " day"),
        ("The queen lost", " her shoe", " his shoe"),
        ("The king", " was", " unfortunately"),
        ("He opened", " the door", " unfortunately"),
        ("The king", " said", " was very glad"),
        ("The fox", " said", " and the wolf"),
    ):
        for one, other in ((right, wrong), (wrong, right)):
            found = answer(bundled(), prompt, one, other)
            if found is None:
                return (
                    "Compare the sums of the log probabilities of the endings' tokens."
                )
            if found != right:
                return f"After {prompt!r} it is {right!r}, not {found!r}, by the sum of all tokens."
    return None


def costliest_head(answer: Callable[[Loss, int, int], int]) -> str | None:
    ids, model = story_ids(120), bundled().model

    def loss(hook: Hook | None = None) -> float:
        rows = softmax(model.forward([ids], hook=hook)[:-1])
        return -float(np.log(rows[np.arange(len(ids) - 1), ids[1:]]).mean())

    for layer in (0, 5):
        found = answer(loss, layer, 4)
        if found is None:
            return "Call loss(zero_head(layer, head)) for each head; take the head of the highest."
        costs = [loss(zero_head(layer, head)) for head in range(4)]
        if found != int(np.argmax(costs)) or not math.isfinite(costs[found]):
            return f"In block {layer} it is head {int(np.argmax(costs))}, not {found}."
    return None
