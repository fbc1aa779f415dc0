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
        result = answer(lm, text)
        if result is None:
            return "Sum -logprobs; divide by ln 2 and by the number of characters."
        if np.isnan(result):
            return "No token is scored with from_end_of_text=False."
        expected = perplexity(lm, [text], from_end_of_text=True).bits_per_character
        if abs(result - expected) > 1e-4:
            mistakes = {
                -expected: " Change the sign: log probabilities are negative.",
                expected * math.log(2): " Bits, not nats?",
                expected * len(text) / len(text.encode()): " Characters, not bytes?",
            }
            hint = _likely_mistake(mistakes, result)
            return (
                f"For {text[:8]!r}…, expected {expected:.3f}, got {result:.3f}.{hint}"
            )
    return None


def _likely_mistake(mistakes: dict[float, str], result: float) -> str:
    """Return the hint for the mistake that gives this result."""
    hints = (hint for value, hint in mistakes.items() if abs(result - value) < 1e-4)
    return next(hints, "")


def most_surprising_token(answer: Callable[[LanguageModel, str], int]) -> str | None:
    for number in (0, 4):
        text = story(number)[:400]
        result = answer(bundled(), text)
        if result is None:
            return "Find the token with the lowest log probability."
        score = bundled().score(text)
        expected = int(score.logprobs.argmin())
        if result != expected:
            nan = " With from_end_of_text=False, the first entry is NaN."
            return f"For one text, expected token {expected}, got {result}.{'' if result else nan}"
    return None


def more_likely(answer: Callable[[LanguageModel, str, str, str], str]) -> str | None:
    for prompt, expected, less_likely in (
        ("Once upon a", " time", " day"),
        ("The queen lost", " her shoe", " his shoe"),
        ("The king", " was", " unfortunately"),
        ("He opened", " the door", " unfortunately"),
        ("The king", " said", " was very glad"),
        ("The fox", " said", " and the wolf"),
    ):
        for first, second in ((expected, less_likely), (less_likely, expected)):
            result = answer(bundled(), prompt, first, second)
            if result is None:
                return (
                    "Compare the sum of the log probabilities of each ending's tokens."
                )
            if result != expected:
                return f"After {prompt!r}: {expected!r}, not {result!r}; sum over all tokens."
    return None


def most_important_head(answer: Callable[[Loss, int, int], int]) -> str | None:
    ids, model = story_ids(120), bundled().model

    def loss(hook: Hook | None = None) -> float:
        rows = softmax(model.forward([ids], hook=hook)[:-1])
        return -float(np.log(rows[np.arange(len(ids) - 1), ids[1:]]).mean())

    for layer in (0, 5):
        result = answer(loss, layer, 4)
        if result is None:
            return "Return the head with the largest loss(zero_head(layer, head))."
        costs = [loss(zero_head(layer, head)) for head in range(4)]
        if result != int(np.argmax(costs)) or not math.isfinite(costs[result]):
            return f"In block {layer}, expected head {int(np.argmax(costs))}, got {result}."
    return None
