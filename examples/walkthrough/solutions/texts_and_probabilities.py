"""Solutions of the exercises in 0_texts_and_probabilities.ipynb."""

import math

from gpt2np import LanguageModel


def most_surprising_word(lm: LanguageModel, text: str) -> str:
    return max(lm.score(text).by_word(), key=lambda word: word.surprisal).text


def more_probable(lm: LanguageModel, first: str, second: str) -> str:
    return max(first, second, key=lambda text: lm.score(text).total)


def surprise_of(lm: LanguageModel, beginning: str, word: str) -> float:
    return -lm.score(f" {word}", given=beginning).total / math.log(2)
