"""The option --model of the commands that need a vocabulary and no weights."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpt2np.tokenizer import Tokenizer


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Declare --model."""
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="whose vocabulary: a Hugging Face id (also with @REVISION), a folder, a file "
        "(tokenizer.json, x.tiktoken), or 'bundled'; default: $GPT2NP_MODEL, else "
        "openai-community/gpt2 or, if that can't be had, the bundled model",
    )


def load_tokenizer(model: str | None) -> "tuple[Tokenizer, str]":
    """The tokenizer of `model`, and a line that says which one it is, and why."""
    from gpt2np.hub import find_vocabulary
    from gpt2np.tokenizer import Tokenizer

    source = find_vocabulary(model)
    why = (
        f" ({source.fallback_reason}; choose another with --model)"
        if source.fallback_reason
        else ""
    )
    return Tokenizer.load(source.folder), f"vocabulary: {source.name}{why}"
