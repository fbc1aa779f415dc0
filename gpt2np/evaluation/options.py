"""The options of scoring."""

from __future__ import annotations

from dataclasses import dataclass

from gpt2np.data.options import field_option
from gpt2np.options import Flag, Integer, check_options, option


@dataclass(frozen=True)
class ScoreOptions:
    """Options of `score_corpus`; see `gpt2np.evaluation.perplexity.perplexity`.

    Raises:
        InvalidArgumentError: a value is out of its range.
    """

    field: str = field_option()
    context: int | None = option(
        None, Integer(2, is_optional=True), "Tokens per window", default_text="the model's context"
    )
    stride: int | None = option(
        None,
        Integer(1, is_optional=True),
        "Number of tokens from the start of a window to the start of the next window",
        default_text="half of a window",
    )
    from_end_of_text: bool = option(
        True,
        Flag(),
        "Insert <|endoftext|> before each document, so that the document's first token is scored",
    )
    tokens: bool = option(
        False,
        Flag(),
        "Add to each row the list token_scores, with an entry for each token: id, text, span in "
        "characters, log probability, entropy of the predicted distribution (in nats), and rank "
        "(1 for the most likely token)",
        group="Output",
    )

    def __post_init__(self) -> None:
        check_options(self)
