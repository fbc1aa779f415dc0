"""WikiText as lm-evaluation-harness measures it: pages, detokenized, per word of the original.

A WikiText file is tokenized: spaces stand around punctuation, " @-@ " for a hyphen in a word. What
the model reads is put back together, while words and bytes are counted in the file's own text; so
the number can be compared with those of models that have other tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpt2np.errors import InvalidArgumentError
from gpt2np.evaluation.perplexity import exp
from gpt2np.evaluation.progress import Progress, unwatched
from gpt2np.evaluation.requests import rolling_likelihoods
from gpt2np.language_model import LanguageModel

_BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"), ('"', '"'), ("'", "'"))


@dataclass(frozen=True)
class WikiText:
    """How well pages are predicted.

    Attributes:
        pages: how many.
        words: as the harness counts them: parts between white space, an empty one at each end, too.
        bytes: of the pages as they are in the file, in UTF-8.
        log_probability: of the detokenized pages, each after an end-of-text, in nats.
    """

    pages: int
    words: int
    bytes: int
    log_probability: float

    @property
    def word_perplexity(self) -> float:
        """exp of the nats per word."""
        return exp(-self.log_probability / self.words)

    @property
    def byte_perplexity(self) -> float:
        """exp of the nats per byte."""
        return exp(-self.log_probability / self.bytes)

    @property
    def bits_per_byte(self) -> float:
        """Negative log probability, to base 2, of a byte."""
        return -self.log_probability / self.bytes / math.log(2)


def wikitext(lm: LanguageModel, pages: Sequence[str], progress: Progress = unwatched) -> WikiText:
    """The perplexity of pages as `pages_of` gives them.

    `progress` is told the pages that are done, and the word perplexity so far.

    Raises:
        InvalidArgumentError: there are no pages, or the model has no end-of-text.
    """
    if not any(page.strip() for page in pages):
        raise InvalidArgumentError("there is no text; give a WikiText file")
    result = WikiText(0, 0, 0, 0.0)
    scores = rolling_likelihoods(lm, [detokenized(page) for page in pages])
    for page, score in zip(pages, scores, strict=True):
        result = WikiText(
            result.pages + 1,
            result.words + len(re.split(r"\s+", page)),
            result.bytes + len(page.encode()),
            result.log_probability + score,
        )
        progress(result.pages, len(pages), {"word perplexity": result.word_perplexity})
    return result


def pages_of(text: str) -> list[str]:
    """A WikiText file's text cut before every title, a line such as " = Robert Boulter = ".

    As in the data set that the harness loads (EleutherAI/wikitext_document_level), where a blank
    beginning belongs to no page.
    """
    pages: list[list[str]] = [[]]
    for line in text.split("\n"):
        if _is_title(line):
            pages.append([])
        pages[-1].append(line)
    joined = ["\n".join(lines) for lines in pages]
    return [page for page in joined[:-1] if page.strip()] + joined[-1:]


def _is_title(line: str) -> bool:
    """Whether there is one = at each end, and not several, as with the titles of sections."""
    bare = line.replace("= = =", "===").replace("= =", "==").strip()
    return bare.startswith("= ") and bare.endswith(" =")


def detokenized(page: str) -> str:
    """The page as the harness's wikitext_detokenizer makes it, its oddities included."""
    page = page.replace("s '", "s'")
    page = re.sub("/' [0-9]/", "/'[0-9]/", page)
    for mark in "-,.":
        page = page.replace(f" @{mark}@ ", mark)
    for mark in ":;.!?,":
        page = page.replace(f" {mark} ", f"{mark} ")
    for left, right in _BRACKETS:
        inner = rf"\{left}\s*([^\{right}]*?)\s*\{right}"
        page = re.sub(inner, rf"{left}\1{right}", page)
    for level in (4, 3, 2):
        page = page.replace(" ".join("=" * level), "=" * level)
    for old, new in ((" ° ", "°"), (" \n", "\n"), ("\n ", "\n"), (" N ", " 1 "), (" 's", "'s")):
        page = page.replace(old, new)
    return page
