"""The option --model of commands that need a vocabulary but no weights."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpt2np.tokenizer import Tokenizer


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Declare --model."""
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="model whose vocabulary to use: Hugging Face id (optionally with @REVISION), folder, "
        "file (tokenizer.json or .tiktoken), or 'bundled' (default: $GPT2NP_MODEL, else "
        "openai-community/gpt2, or the bundled model if that is unavailable)",
    )


def load_tokenizer(model: str | None) -> "tuple[Tokenizer, str]":
    """Load the tokenizer of `model`; return it with a line that says which one, and why."""
    from gpt2np.hub import find_vocabulary
    from gpt2np.tokenizer import Tokenizer

    source = find_vocabulary(model)
    reason = (
        f" ({source.fallback_reason}; choose another with --model)"
        if source.fallback_reason
        else ""
    )
    return Tokenizer.load(source.folder), f"vocabulary: {source.name}{reason}"
