"""What the checkers try answers on."""

from functools import cache
from pathlib import Path

import gpt2np

TEXTS = Path(__file__).parent.parent / "texts"
STORIES = sorted(TEXTS.glob("the_*.txt"))


@cache
def bundled() -> gpt2np.LanguageModel:
    """The bundled model, loaded once."""
    return gpt2np.load("bundled")


def story(number: int = 0) -> str:
    """One of the stories in texts/."""
    return STORIES[number].read_text(encoding="utf-8")


def story_ids(length: int, number: int = 0) -> list[int]:
    """The first ids of a story."""
    return bundled().tokenizer.encode(story(number))[:length]
