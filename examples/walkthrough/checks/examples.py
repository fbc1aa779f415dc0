"""Example inputs for the checkers."""

from functools import cache
from pathlib import Path

import gpt2np

TEXTS = Path(__file__).parent.parent / "texts"
STORIES = sorted(TEXTS.glob("the_*.txt"))


@cache
def bundled() -> gpt2np.LanguageModel:
    """Return the bundled model, loaded once."""
    return gpt2np.load("bundled")


def story(number: int = 0) -> str:
    """Return the text of a story in texts/."""
    return STORIES[number].read_text(encoding="utf-8")


def story_ids(length: int, number: int = 0) -> list[int]:
    """Return the first `length` ids of a story."""
    return bundled().tokenizer.encode(story(number))[:length]
