"""Checkers of the exercises in 0_texts_and_probabilities.ipynb."""

import math
from collections.abc import Callable

from checks.examples import bundled, story
from gpt2np import LanguageModel


def most_surprising_word(answer: Callable[[LanguageModel, str], str]) -> str | None:
    for text in (
        "The king sat upon his refrigerator.",
        "The fox ate an umbrella and slept.",
        story(2)[:300],
    ):
        result = answer(bundled(), text)
        words = bundled().score(text).by_word()
        expected = max(words, key=lambda word: word.surprisal).text
        if result is None:
            return "Return the .text of the word with the largest .surprisal."
        if result != expected:
            return f"In {text[:35]!r}: {expected!r}, not {result!r}."
    return None


def more_probable(answer: Callable[[LanguageModel, str, str], str]) -> str | None:
    for good, bad in (
        ("The foxes were hungry.", "The foxes was hungry."),
        ("He gave me the ring.", "He gave I the ring."),
        ("It rained.", "It rained upon the refrigerator of the king."),
    ):
        for first, second in ((good, bad), (bad, good)):
            result = answer(bundled(), first, second)
            if result is None:
                return "Compare lm.score(first).total with lm.score(second).total."
            if result != good:
                return (
                    f"{good!r} is more probable than {bad!r}; compare sums, not means."
                )
    return None


def surprise_of(answer: Callable[[LanguageModel, str, str], float]) -> str | None:
    for beginning, word in (
        ("She opened the", "door"),
        ("The old woman baked a loaf of", "refrigerators"),
    ):
        result = answer(bundled(), beginning, word)
        if result is None:
            return "Use lm.score with given=beginning."
        expected = -bundled().score(f" {word}", given=beginning).total / math.log(2)
        without_space = -bundled().score(word, given=beginning).total / math.log(2)
        mistakes = {
            -expected: " Change the sign: log probabilities are negative.",
            expected * math.log(2): " Bits, not nats: divide by ln 2.",
            without_space: " The word needs its space.",
        }
        if abs(result - expected) > 1e-3:
            hints = (h for value, h in mistakes.items() if abs(result - value) < 1e-3)
            return f"For {word!r}, expected {expected:.2f}, got {result:.2f}.{next(hints, '')}"
    return None
