"""WikiText as evaluated by lm-evaluation-harness: detokenized pages, perplexity per original word.

A WikiText file is tokenized: punctuation is surrounded by spaces, and a hyphen within a word is
" @-@ ". The model reads the detokenized text, but words and bytes are counted in the file's text.
So models with different tokenizers can be compared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from gpt2np.errors import InvalidArgumentError
from gpt2np.evaluation.loglikelihood import rolling_loglikelihoods
from gpt2np.evaluation.result import PER_UNIT, PerUnitResult, ProgressCallback, ignore_progress
from gpt2np.language_model import LanguageModel

_BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"), ('"', '"'), ("'", "'"))


@dataclass(frozen=True)
class WikiText(PerUnitResult):
    """Perplexity of WikiText pages.

    Attributes:
        pages: number of pages.
        words: number of words as the harness counts them: parts between white space, including an
            empty part at each end.
        bytes: number of bytes of the original pages in UTF-8.
        log_probability: log probability of the detokenized pages, each after an end-of-text token,
            in nats.
    """

    pages: int
    words: int
    bytes: int
    log_probability: float

    definition: ClassVar[str] = "harness"
    JSON_FIELDS: ClassVar[tuple[str, ...]] = (
        *("definition", "pages", "words", "bytes", "log_probability"),
        *PER_UNIT,
    )

    @property
    def total_nats(self) -> float:
        """Negative log probability of all pages."""
        return -self.log_probability

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of the table."""
        return [*self.per_unit_rows(), ("pages", f"{self.pages:,} ({self.words:,} words)")]


def wikitext(
    lm: LanguageModel, pages: Sequence[str], on_progress: ProgressCallback = ignore_progress
) -> WikiText:
    """Compute the perplexity of pages, as split by `split_pages`.

    Args:
        lm: the model.
        pages: tokenized pages.
        on_progress: called with the number of scored pages and the word perplexity so far.

    Raises:
        InvalidArgumentError: there are no pages, or the model has no end-of-text token.
    """
    if not any(page.strip() for page in pages):
        raise InvalidArgumentError("there is no text; give a WikiText file that is not empty")
    result = WikiText(0, 0, 0, 0.0)
    scores = rolling_loglikelihoods(lm, [detokenize(page) for page in pages])
    for page, score in zip(pages, scores, strict=True):
        result = WikiText(
            result.pages + 1,
            result.words + len(re.split(r"\s+", page)),
            result.bytes + len(page.encode()),
            result.log_probability + score,
        )
        on_progress(result.pages, len(pages), {"word perplexity": result.word_perplexity})
    return result


def split_pages(text: str) -> list[str]:
    """Split the text of a WikiText file before every title, a line such as " = Robert Boulter = ".

    Follows the data set that the harness loads (EleutherAI/wikitext_document_level), in which blank
    text before the first title is no page.
    """
    pages: list[list[str]] = [[]]
    for line in text.split("\n"):
        if _is_title(line):
            pages.append([])
        pages[-1].append(line)
    joined = ["\n".join(lines) for lines in pages]
    return [page for page in joined[:-1] if page.strip()] + joined[-1:]


def _is_title(line: str) -> bool:
    """Whether the line has a single = at each end; titles of sections have several."""
    bare = line.replace("= = =", "===").replace("= =", "==").strip()
    return bare.startswith("= ") and bare.endswith(" =")


def detokenize(page: str) -> str:
    """Detokenize a page exactly like the harness's wikitext_detokenizer, with its oddities."""
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
