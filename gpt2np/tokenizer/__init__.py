"""Text ↔ ids."""

from gpt2np.tokenizer.decoder import StreamingDecoder
from gpt2np.tokenizer.tokenizer import END_OF_TEXT, Tokenizer

__all__ = ["END_OF_TEXT", "StreamingDecoder", "Tokenizer"]
