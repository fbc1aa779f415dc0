"""The options of `gpt2np.tokenizer.training.train`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gpt2np.data.text import is_unicode_text
from gpt2np.errors import InvalidArgumentError, check_argument
from gpt2np.options import attributes_text, check_options, option
from gpt2np.tokenizer.pre_tokenizer import GPT2_PATTERN, PATTERNS
from gpt2np.tokenizer.vocabulary import CHAR_TO_BYTE, END_OF_TEXT

UNK_TOKEN = "<unk>"
"""Special token for characters without a token; only the alphabet "characters" needs it."""

Alphabet = Literal["bytes", "characters"]


def _pattern(value: Any) -> str | None:
    """Return the pattern that a name stands for; "none" stands for no pattern."""
    names = {**PATTERNS, "none": None}
    if value not in (*names, *names.values()):
        raise ValueError(value)
    return names.get(value, value)


@dataclass(frozen=True)
class TrainingOptions:
    """Training options, with the names and meanings of `tokenizers`' BpeTrainer.

    Raises:
        InvalidArgumentError: a value is out of its range, or two options contradict each other.
    """

    vocab_size: int = option(
        30_000,
        "Number of tokens, including the special tokens and the alphabet",
        details="The vocabulary is smaller if no pair is left to merge, and larger if the alphabet "
        "alone is larger.",
        low=1,
    )
    min_frequency: int = option(0, "Merge only pairs that occur at least N times", low=0)
    max_token_length: int | None = option(
        None,
        "Exclude tokens of N or more bytes or characters (see `alphabet`), but none of length 2",
        details="This is the rule of Hugging Face's tokenizers.",
        default_text="no limit",
        low=1,
    )
    special_tokens: tuple[str, ...] = option(
        (END_OF_TEXT,),
        "Special token; replaces the default, so give <|endoftext|>, too, if gpt2np encode is to "
        "work",
        details="The special tokens get the first ids.",
        flags=("--special-token",),
        default_text="<|endoftext|>",
    )
    pattern: str | None = option(
        GPT2_PATTERN,
        f"How to split a text into pieces: {', '.join(PATTERNS)}, or 'none', which allows merges "
        "across words",
        metavar="NAME",
        default_text="gpt2",
        convert=_pattern,
        noun=f"{', '.join(PATTERNS)} or none",
    )
    alphabet: Alphabet = option(
        "bytes", "Initial tokens: all 256 bytes, or the characters of the text"
    )

    def __post_init__(self) -> None:
        check_options(self)
        for token in self.special_tokens:
            check_argument(is_unicode_text(token), "special_tokens", token, "Unicode text")
        if self.alphabet == "bytes":
            self._check_byte_alphabet()

    def _check_byte_alphabet(self) -> None:
        if clash := CHAR_TO_BYTE.keys() & set(self.special_tokens):
            raise InvalidArgumentError(
                f"the special token {min(clash)!r} is a character of the byte alphabet; "
                "choose a longer one"
            )
        minimum = 256 + len(set(self.special_tokens))
        if self.vocab_size < minimum:
            raise InvalidArgumentError(
                f"vocab_size is {self.vocab_size}; the 256 bytes and the special tokens need "
                f"{minimum}",
                param="vocab_size",
            )


TrainingOptions.__doc__ = f"{TrainingOptions.__doc__}\n{attributes_text(TrainingOptions)}"
