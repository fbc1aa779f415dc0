"""The options of `gpt2np.tokenizer.training.train`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gpt2np.data.text import is_unicode_text
from gpt2np.errors import InvalidArgumentError, check_argument
from gpt2np.options import Integer, OneOf, Text, Texts, attributes_text, check_options, option
from gpt2np.tokenizer.pre_tokenizer import GPT2_PATTERN, PATTERN_NAMES, make_pre_tokenizer
from gpt2np.tokenizer.vocabulary import CHAR_TO_BYTE, END_OF_TEXT

UNK_TOKEN = "<unk>"
"""Special token for characters without a token; only the alphabet "characters" needs it."""

Alphabet = Literal["bytes", "characters"]


class Pattern(Text):
    """A regular expression, or the name of a known one; "none" and None stand for no pattern."""

    def words(self) -> str:
        return f"{', '.join(PATTERN_NAMES)}, none or a regular expression"

    def is_valid(self, value: Any) -> bool:
        is_name = super().is_valid(value) and value.lower() in (*PATTERN_NAMES, "none")
        return is_name or (super().is_valid(value) and not value.isalnum())

    def normalize(self, value: Any) -> str | None:
        return {**PATTERN_NAMES, "none": None}.get(value.lower(), value)


@dataclass(frozen=True)
class TrainingOptions:
    """Training options, with the names and meanings of `tokenizers`' BpeTrainer.

    Raises:
        InvalidArgumentError: a value is out of its range, or two options contradict each other.
    """

    vocab_size: int = option(
        30_000,
        Integer(1),
        "Number of tokens, including the special tokens and the alphabet",
        details="The vocabulary is smaller if no pair is left to merge, and larger if the alphabet "
        "alone is larger.",
    )
    min_frequency: int = option(0, Integer(0), "Merge only pairs that occur at least N times")
    max_token_length: int | None = option(
        None,
        Integer(1, is_optional=True),
        "Create only tokens shorter than N bytes, or shorter than N characters if the alphabet "
        "consists of characters; length 2 is always allowed, as in Hugging Face's tokenizers",
        default_text="no limit",
    )
    special_tokens: tuple[str, ...] = option(
        (END_OF_TEXT,),
        Texts(),
        "Special token, which separates documents",
        details="The special tokens get the first ids.",
        flags=("--special-token",),
        default_text="<|endoftext|>, which gpt2np encode needs",
    )
    pattern: str | None = option(
        GPT2_PATTERN,
        Pattern(is_optional=True),
        "Pattern with which the pre-tokenizer splits a text into pieces. The pattern is a regular "
        f"expression, a known name ({', '.join(PATTERN_NAMES)}), or 'none', which allows merges "
        "across words",
        metavar="REGEX",
        default_text="gpt2",
    )
    alphabet: Alphabet = option(
        "bytes",
        OneOf("bytes", "characters"),
        "Initial tokens: all 256 bytes, or the characters of the text",
    )
    limit_alphabet: int | None = option(
        None,
        Integer(1, is_optional=True),
        "With an alphabet of characters: keep only the N most frequent characters; other "
        "characters become <unk>",
        details="Ties go to the smallest code points. Training removes the other characters, so "
        "their neighbors become adjacent.",
    )

    def __post_init__(self) -> None:
        check_options(self)
        for token in self.special_tokens:
            check_argument(is_unicode_text(token), "special_tokens", token, "Unicode text")
        if self.alphabet == "bytes":
            self._check_byte_alphabet()
        make_pre_tokenizer(() if self.pattern is None else (self.pattern,))

    def _check_byte_alphabet(self) -> None:
        if self.limit_alphabet is not None:
            raise InvalidArgumentError(
                "{limit_alphabet} needs the alphabet of characters; all 256 bytes are always kept",
                limit_alphabet=self.limit_alphabet,
            )
        if clash := CHAR_TO_BYTE.keys() & set(self.special_tokens):
            raise InvalidArgumentError(
                f"the special token {min(clash)!r} is a character of the byte alphabet; "
                "choose a longer one"
            )
        minimum = 256 + len(set(self.special_tokens))
        if self.vocab_size < minimum:
            raise InvalidArgumentError(
                "{vocab_size} is {vocab_size.value}; the 256 bytes and the special tokens need {0}",
                minimum,
                vocab_size=self.vocab_size,
            )


TrainingOptions.__doc__ = f"{TrainingOptions.__doc__}\n{attributes_text(TrainingOptions)}"
