"""Which model to load, and how to run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpt2np.errors import InvalidArgumentError
from gpt2np.options import check_options, option

MODEL_HELP = "Hugging Face model ID, ID@REVISION, model folder, or 'bundled', a small model"


@dataclass(frozen=True)
class ModelOptions:
    """Arguments of `LanguageModel.load`, as texts and numbers.

    Raises:
        InvalidArgumentError: a value is out of its range.
    """

    model: str | None = option(
        None,
        MODEL_HELP,
        metavar="MODEL",
        default_text="$GPT2NP_MODEL if set, else openai-community/gpt2",
    )
    tokenizer: str | None = option(
        None,
        "Tokenizer to use instead of the model's own: a vocabulary file, or a model as in `model`",
        metavar="MODEL",
    )
    dtype: Literal["float32", "float64"] = option(
        "float32", "Data type of the computation", group="Performance"
    )
    weights: Literal["int8"] | None = option(
        None,
        "Quantize the weight matrices to 8 bits: the matrices take a quarter of the memory, and "
        "the results change slightly",
        group="Performance",
    )
    exact: bool = option(
        False,
        "Compute in float64 so that every machine gets the same bits; several times slower",
        group="Performance",
    )
    processes: int | Literal["auto"] = option(
        1,
        "Processes that share each forward pass, one core each: N above 1 ignores `threads`; "
        "'auto' measures which number up to `threads` is fastest",
        group="Performance",
        metavar="N|auto",
        noun="auto or an integer, at least 1",
        default_text="auto",
        low=1,
    )
    draft: str = option(
        "auto",
        "Speculative decoding, for the same text in less time: 'auto' guesses tokens by n-grams; "
        "FILE is an n-gram table to use; 'none' guesses nothing",
        details="One pass verifies several tokens. 'auto' takes the n-grams of the text so far and "
        "of a built-in table. `examples/make_ngram_table.py` makes a table.",
        group="Performance",
        metavar="auto|none|FILE",
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.exact and self.weights:
            message = "`exact` and `weights` contradict each other: int8 weights are rounded"
            raise InvalidArgumentError(message, param="exact")
