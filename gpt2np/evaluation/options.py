"""The options of scoring."""

from __future__ import annotations

from dataclasses import dataclass

from gpt2np.data.options import SPECIAL_HELP, Special, field_option
from gpt2np.options import check_options, option


@dataclass(frozen=True)
class ScoreOptions:
    """Options of `score_corpus`; see `gpt2np.evaluation.perplexity.perplexity`.

    Raises:
        InvalidArgumentError: a value is out of its range.
    """

    field: str = field_option()
    context: int | None = option(
        None, "Tokens per window", default_text="the model's context", low=2
    )
    stride: int | None = option(
        None,
        "Number of tokens from the start of a window to the start of the next window",
        default_text="half of a window",
        low=1,
    )
    from_end_of_text: bool = option(
        True,
        "Insert <|endoftext|> before each document, so that the document's first token is scored",
    )
    special: Special = option("text", SPECIAL_HELP)
    tokens: bool = option(
        False,
        "Add to each row the list token_scores, with an entry for each token",
        details="An entry has the id, text, span in characters, log probability, entropy of the "
        "predicted distribution (in nats), and rank (1 for the most likely token).",
        group="Output",
    )

    def __post_init__(self) -> None:
        check_options(self)
