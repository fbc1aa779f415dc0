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


def tokens_after(answer: Callable[[TrainedVocabulary, int, str], int]) -> str | None:
    if (found := answer(_trained(), 0, "hello")) is None:
        return "Return a number; for 0 merges it is the number of bytes."
    if found != 5:
        return f"After 0 merges 'hello' is 5 tokens, not {found}."
    if answer(_trained(), 0, "é") != 2:
        return "After 0 merges a token is a byte, and 'é' has two."
    tokenizer = Tokenizer(_trained().vocabulary)
    if answer(_trained(), 143, story(2)) != tokenizer.count(story(2)):
        return f"After all 143 merges the third story is {tokenizer.count(story(2))} tokens."
    found, right = answer(_trained(), 20, "the little fox"), 10
    return (
        None
        if found == right
        else f"After 20 merges 'the little fox' is {right}, not {found}."
    )


def merges_needed(
    answer: Callable[[TrainedVocabulary, str, float], int | None],
) -> str | None:
    for goal, right in {1.0: 0, 1.5: 38, 1.9: 131}.items():
        found = answer(_trained(), story(2), goal)
        if found is None:
            return "Try 0, 1, 2, … merges until the text is short enough."
        if found != right:
            return f"For {goal} characters per token in the third story it is {right}, not {found}."
    for text, goal, right in (("low lower lowest", 2.0, 3), ("éé low lower", 1.0, 1)):
        if (found := answer(_tiny(), text, goal)) != right:
            return (
                f"Of the merges learned from 'low lower lowest', {text!r} needs {right} "
                f"for {goal} characters per token, not {found}."
            )
    if answer(_trained(), story(2), 100.0) is not None:
        return "For a goal that can't be reached return None."
    return None


def stepping_stones(answer: Callable[[TrainedVocabulary, str], set[str]]) -> str | None:
    if (found := answer(_trained(), story(0))) is None:
        return "Encode the text; which of the tokens from number 257 on are not among its ids?"
    used = set(Tokenizer(_trained().vocabulary).encode(story(0)))
    right = {
        token for number, token in enumerate(_trained().tokens) if number not in used
    }
    right -= set(_trained().tokens[:257])
    if extra := set(found) - right:
        return f"{sorted(extra)[0]!r} is not one: a merge must make it, and the text not use it."
    return (
        f"{sorted(right - set(found))[0]!r} is one, too."
        if right - set(found)
        else None
    )
