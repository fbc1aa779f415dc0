"""Conversion between text and token ids: BPE, pre-tokenizer, added tokens, files, training."""

from importlib import import_module
from typing import TYPE_CHECKING

from gpt2np.tokenizer.vocabulary import END_OF_TEXT, AddedToken, Vocabulary

if TYPE_CHECKING:
    from gpt2np.tokenizer.tokenizer import StreamingDecoder, Tokenizer

__all__ = ["END_OF_TEXT", "AddedToken", "StreamingDecoder", "Tokenizer", "Vocabulary"]


def __getattr__(name: str) -> object:
    if name in __all__:  # imported on first use, because it takes 12 ms
        return getattr(import_module(f"{__name__}.tokenizer"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
