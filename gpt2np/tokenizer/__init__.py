"""Conversion between text and token ids: BPE, pre-tokenizer, added tokens, files, training."""

from gpt2np.tokenizer.tokenizer import StreamingDecoder as StreamingDecoder
from gpt2np.tokenizer.tokenizer import Tokenizer as Tokenizer
from gpt2np.tokenizer.vocabulary import END_OF_TEXT as END_OF_TEXT
from gpt2np.tokenizer.vocabulary import AddedToken as AddedToken
from gpt2np.tokenizer.vocabulary import Vocabulary as Vocabulary
