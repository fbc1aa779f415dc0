"""What lm-evaluation-harness asks a model for, answered as its own GPT-2 by transformers does.

As of its version 0.4: a context's last white space belongs to what follows it; the context is
encoded alone, and as many of both texts' tokens are left out; an empty context is an end-of-text;
what is too long loses its beginning. `<|endoftext|>` in a text is the special token, as
transformers' tokenizer takes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gpt2np.errors import ContextLengthError, InvalidArgumentError
from gpt2np.generation.scoring import Span, Window, score_windows, windows_of
from gpt2np.language_model import LanguageModel


def encode(lm: LanguageModel, text: str) -> list[int]:
    """The ids of a text, special tokens among them."""
    return lm.tokenizer.encode(text, allowed_special="all")


def end_of_text(lm: LanguageModel) -> int:
    """The id that stands before a text. InvalidArgumentError if the model has none."""
    if lm.bos_token_id is None:
        raise InvalidArgumentError(f"{lm.name} has no end-of-text to put before a text")
    return lm.bos_token_id


def continuation_window(lm: LanguageModel, context: str, continuation: str) -> Window:
    """The ids of both texts, of which those of the continuation count.

    Where a token of both texts together spans the border, the ids are none of a text: the
    context's own, and what is left of both texts' after so many (lm_eval's `_encode_pair`).

    Raises:
        InvalidArgumentError: the continuation has no tokens of its own.
        ContextLengthError: it has more tokens than the model's context.
    """
    before, whole = encode(lm, context.rstrip()), encode(lm, context + continuation)
    if not before:
        before = [end_of_text(lm)]
        whole = whole if whole[:1] == before else before + whole
    rest = whole[len(before) :]
    count, most = len(rest), lm.model.config.n_positions
    if count < 1:
        raise InvalidArgumentError(f"there is nothing to predict in {continuation!r}")
    if count > most:
        raise ContextLengthError(
            f"{continuation[:40]!r}… has {count} tokens, more than the model's context of {most}"
        )
    ids = [*before, *rest][-(most + 1) :]
    return Window(np.array(ids), len(ids) - count)


def continuation_likelihoods(
    lm: LanguageModel, pairs: Sequence[tuple[str, str]]
) -> Iterator[tuple[float, bool]]:
    """`loglikelihood`: for each context and continuation the latter's log probability, in nats,
    and whether each of its ids is the likeliest.

    Raises: see `continuation_window`.
    """
    windows = [continuation_window(lm, *pair) for pair in pairs]
    for window, scored in zip(windows, score_windows(lm.model, windows), strict=True):
        is_greedy = bool((scored.best == window.ids[window.first :]).all())
        yield float(scored.log_probabilities.sum()), is_greedy


def rolling_spans(length: int, context: int) -> Iterator[Span]:
    """Windows of up to context + 1 of `length` tokens, so that each but the first counts once.

    They follow on each other; the last one, where fewer are left, begins earlier, so that it has as
    many tokens as the others.
    """
    done = 1
    while done < length:
        stop = min(done + context, length)
        yield Span(max(0, stop - context - 1), done, stop)
        done = stop


def rolling_likelihoods(lm: LanguageModel, texts: Sequence[str]) -> Iterator[float]:
    """`loglikelihood_rolling`: the log probability of each text after an end-of-text, in nats."""
    begin, context = end_of_text(lm), lm.model.config.n_positions
    windows: list[Window] = []
    counts = []
    for text in texts:
        ids = np.array([begin, *encode(lm, text)])
        own = list(windows_of(ids, rolling_spans(len(ids), context)))
        counts.append(len(own))
        windows += own
    scores = score_windows(lm.model, windows)
    for count in counts:
        yield sum(float(next(scores).log_probabilities.sum()) for _ in range(count))
