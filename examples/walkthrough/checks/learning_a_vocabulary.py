"""Checkers of the exercises in 2_learning_a_vocabulary.ipynb."""

from collections.abc import Callable
from functools import cache

from checks.examples import story
from gpt2np import Tokenizer
from gpt2np.tokenizer.training import TrainedVocabulary, TrainingOptions, train


@cache
def _trained() -> TrainedVocabulary:
    return train([story(0), story(1)], TrainingOptions(vocab_size=400))


@cache
def _tiny() -> TrainedVocabulary:
    return train(["low lower lowest"], TrainingOptions(vocab_size=260))


def count_tokens(answer: Callable[[TrainedVocabulary, int, str], int]) -> str | None:
    if (result := answer(_trained(), 0, "hello")) is None:
        return "Return the number of tokens; with 0 merges it is the number of bytes."
    if result != 5:
        return f"With 0 merges, 'hello' has 5 tokens, not {result}."
    if answer(_trained(), 0, "é") != 2:
        return "With 0 merges, every byte is a token, and 'é' has two bytes."
    tokenizer = Tokenizer(_trained().vocabulary)
    if answer(_trained(), 143, story(2)) != tokenizer.count(story(2)):
        return f"With all 143 merges, story 2 has {tokenizer.count(story(2))} tokens."
    result, expected = answer(_trained(), 20, "the little fox"), 10
    return (
        None
        if result == expected
        else f"With 20 merges, 'the little fox' has {expected} tokens, not {result}."
    )


def min_merges(
    answer: Callable[[TrainedVocabulary, str, float], int | None],
) -> str | None:
    for goal, expected in {1.0: 0, 1.5: 38, 1.9: 131}.items():
        result = answer(_trained(), story(2), goal)
        if result is None:
            return "Try 0, 1, 2, … merges until the text has few enough tokens."
        if result != expected:
            return (
                f"For {goal} characters per token in story 2: {expected}, not {result}."
            )
    for text, goal, expected in (
        ("low lower lowest", 2.0, 3),
        ("éé low lower", 1.0, 1),
    ):
        if (result := answer(_tiny(), text, goal)) != expected:
            return (
                f"Of the merges learned from 'low lower lowest', {text!r} needs {expected} "
                f"for {goal} characters per token, not {result}."
            )
    if answer(_trained(), story(2), 100.0) is not None:
        return "Return None if all merges are not enough."
    return None


def intermediate_tokens(
    answer: Callable[[TrainedVocabulary, str], set[str]],
) -> str | None:
    if (result := answer(_trained(), story(0))) is None:
        return "Encode the text, and find the tokens from id 257 on that are not among its ids."
    used = set(Tokenizer(_trained().vocabulary).encode(story(0)))
    expected = {
        token for number, token in enumerate(_trained().tokens) if number not in used
    }
    expected -= set(_trained().tokens[:257])
    if extra := set(result) - expected:
        return f"{sorted(extra)[0]!r} is wrong: return only unused tokens of merges."
    return (
        f"{sorted(expected - set(result))[0]!r} is missing."
        if expected - set(result)
        else None
    )
