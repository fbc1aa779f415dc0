"""Conversion between text and token ids: BPE, pre-tokenizer, added tokens, files, training."""

from gpt2np.tokenizer.tokenizer import StreamingDecoder, Tokenizer
from gpt2np.tokenizer.vocabulary import END_OF_TEXT, AddedToken, Vocabulary

__all__ = ["END_OF_TEXT", "AddedToken", "StreamingDecoder", "Tokenizer", "Vocabulary"]
