"""Encoding text with GPT-2's byte-level byte-pair encoding (Radford et al. 2019, section 2.2)."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cached_property
from itertools import chain
from pathlib import Path
from unicodedata import is_normalized

from gpt2np.data.files import as_path
from gpt2np.errors import InvalidArgumentError, TokenizerError, check_argument, is_integer
from gpt2np.tokenizer.bpe import (
    BoundedCache,
    JoinablePairs,
    find_joinable_pairs,
    merge_pairs,
    split_at_unjoinable,
)
from gpt2np.tokenizer.formats import read_vocabulary, write_vocabulary
from gpt2np.tokenizer.normalizer import (
    Segment,
    find_first,
    replace_surrogates,
    split_and_normalize,
)
from gpt2np.tokenizer.pre_tokenizer import (
    ASCII_PUNCTUATION,
    GPT2_PATTERN,
    make_pre_tokenizer,
    split_text,
    word_text,
)
from gpt2np.tokenizer.vocabulary import END_OF_TEXT, Vocabulary, token_bytes

TYPE_CHECKING = False  # typing and rarely needed modules would double the import time
if TYPE_CHECKING:
    from typing import Literal, TypedDict

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from gpt2np.tokenizer.trace import MergeStep, MergeTrace, TokenSpan

    Special = Literal["all"] | Collection[str]

    class EncodeOptions(TypedDict, total=False):
        """The keyword arguments of `Tokenizer.encode`; see `Tokenizer`."""

        allowed_special: Special
        disallowed_special: Special


_SHORT_PIECE = 16  # characters; longer pieces rarely repeat as a whole
_CHUNK_CACHE_BYTES = 4 << 20
_PIECE_CACHE_BYTES = 12 << 20
_WORD_CACHE_BYTES = 48 << 20  # there are more distinct words than pieces


class Tokenizer:
    """Encodes text to token ids and decodes token ids to text.

    The ids equal those of tiktoken and of Hugging Face's `tokenizers`:

        >>> tokenizer = Tokenizer.load("gpt2")
        >>> tokenizer.encode("GPT2 was created by OpenAI")
        [38, 11571, 17, 373, 2727, 416, 4946, 20185]

    Threads can share a tokenizer, and it can be pickled. Caches of at most 64 MiB speed up
    encoding; they don't change the ids.

    Untrusted text may contain the text of a special token. By default, `encode` and similar methods
    reject such text. The arguments `allowed_special` and `disallowed_special` change that. Each
    takes "all" or a set of special tokens. A token in both is allowed:

        encode("<|endoftext|>")                            → InvalidArgumentError
        encode("<|endoftext|>", disallowed_special=())     → [27, 91, 437, …], plain text
        encode("<|endoftext|>", allowed_special="all")     → [50256], the special token

    Lone surrogates, which UTF-8 can't express, become U+FFFD, as in tiktoken.

    Attributes:
        vocabulary: content of the vocabulary files.
        special_tokens: dictionary from the text of a special token to its id.
        vocab_size: the highest token id plus one.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.special_tokens = {
            token.content: token.id for token in vocabulary.added_tokens if token.special
        }
        self.vocab_size = vocabulary.size
        self._pre_tokenize = make_pre_tokenizer(vocabulary.pattern)
        self._splits_whitespace = vocabulary.pattern == GPT2_PATTERN
        self._ids = vocabulary.ids
        self._chunk_cache = BoundedCache(self._merge_chunk, _CHUNK_CACHE_BYTES)
        self._piece_cache = BoundedCache(self._encode_piece, _PIECE_CACHE_BYTES)
        self._word_cache = BoundedCache(self._encode_word, _WORD_CACHE_BYTES)

    @classmethod
    def load(cls, vocabulary: str | Path) -> Tokenizer:
        """Load a vocabulary: "bundled", a model on the Hub, a folder, or a file.

        A str is an existing path, or else the name of a model as in `gpt2np.load`; only the model's
        vocabulary is downloaded. A `Path` is never the name of a model.

        A folder needs `tokenizer.json`, `vocab.json` + `merges.txt`, or OpenAI's `encoder.json`
        + `vocab.bpe`; the first found is read. The folder's `tokenizer_config.json` and
        `special_tokens_map.json` have the same effect as in transformers 5: see
        `gpt2np.tokenizer.special_tokens`. If `vocabulary` is the path of a `tokenizer.json`, the
        other files in its folder are ignored.

        Raises:
            ModelNotFoundError: no model has this name, or the download fails.
            TokenizerError: a file is missing or damaged, the files don't match, or they need a
                feature that gpt2np lacks.
        """
        if vocabulary == "":
            raise TokenizerError("the vocabulary's name is empty; name a model, folder or file")
        if isinstance(vocabulary, Path):
            return cls(read_vocabulary(vocabulary))
        from gpt2np.hub.find import find_vocabulary

        return cls(read_vocabulary(find_vocabulary(vocabulary).path))

    def save(self, folder: str | Path) -> None:
        """Write the vocabulary in Hugging Face's formats.

        The files are `tokenizer.json` and `tokenizer_config.json`. If GPT-2's format can express
        the vocabulary, `vocab.json` + `merges.txt` are also written. A vocabulary without a special
        tokens map ("eos_token", …) gets `<|endoftext|>` as bos_token and eos_token. Existing files
        of these names are replaced.

        Raises OSError if the folder can't be created or written to.
        """
        write_vocabulary(self.vocabulary, as_path(folder))

    def __repr__(self) -> str:
        return f"<Tokenizer of {self.vocab_size} ids, special tokens {list(self.special_tokens)}>"

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[Vocabulary]]:
        return type(self), (self.vocabulary,)

    @property
    def eos_token_id(self) -> int | None:
        """Id of the `eos_token`, or else id of `<|endoftext|>`; None if both tokens are missing."""
        ids = {token.content: token.id for token in self.vocabulary.added_tokens}
        eos_token = self.vocabulary.special_tokens_map.get("eos_token")
        return ids[eos_token] if eos_token in ids else self.special_tokens.get(END_OF_TEXT)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 hash of the vocabulary, in hexadecimal; the same for equal vocabularies."""
        from hashlib import sha256

        compared = [getattr(self.vocabulary, f.name) for f in fields(Vocabulary) if f.compare]
        content = [sorted(v.items()) if isinstance(v, dict) else v for v in compared]
        return sha256(repr(content).encode("utf-8", "surrogatepass")).hexdigest()

    def encode(
        self,
        text: str,
        *,
        allowed_special: Special = (),
        disallowed_special: Special = "all",
    ) -> list[int]:
        """Encode `text` to token ids; `Tokenizer` explains the keyword arguments.

        Raises InvalidArgumentError if `text` contains a disallowed special token, or a character
        without a token.
        """
        ids: list[int] = []
        for segment, added_id in self._segments(text, allowed_special, disallowed_special):
            if added_id is None:
                self._encode_plain(segment, ids)
            else:
                ids.append(added_id)
        return ids

    def encode_to_numpy(
        self, text: str, **options: Unpack[EncodeOptions]
    ) -> NDArray[np.uint16 | np.uint32]:
        """Encode `text` to an array (N,) of uint16, or uint32 if `vocab_size` exceeds 65,536."""
        import numpy as np

        return np.array(
            self.encode(text, **options), np.uint16 if self.vocab_size <= 1 << 16 else np.uint32
        )

    def encode_batch(
        self, texts: Iterable[str], **options: Unpack[EncodeOptions]
    ) -> list[list[int]]:
        """Encode each text in `texts`; `options` are the keyword arguments of `encode`."""
        _check_list("texts", texts, "a list of texts; for one text call encode")
        return [self.encode(text, **options) for text in texts]

    def count(self, text: str, **options: Unpack[EncodeOptions]) -> int:
        """Count the tokens of `text`; `options` are the keyword arguments of `encode`."""
        return len(self.encode(text, **options))

    def offsets(self, text: str, **options: Unpack[EncodeOptions]) -> list[TokenSpan]:
        """Encode `text`; return each token id with the characters and bytes that the token covers.

        A token may cover only some bytes of a character. Its character span then includes the
        whole character; its byte span has only the covered bytes. Character spans equal those of
        `tokenizers`. A surrogate pair counts as one character.

        Raises InvalidArgumentError in the same cases as `encode`, or if the vocabulary normalizes
        text to Unicode form NFC, and `text` is in another form.
        """
        from gpt2np.tokenizer.trace import token_spans

        text = replace_surrogates(text)
        if self.vocabulary.nfc and not is_normalized("NFC", text):
            raise InvalidArgumentError(
                "the tokenizer changes the text to Unicode form NFC, in which positions differ; "
                'pass unicodedata.normalize("NFC", text)'
            )
        sized: list[tuple[int, int]] = []
        for segment, added_id in self._segments(text, **options):
            if added_id is None:
                pieces = self._pre_tokenize(segment)
                tokens = chain.from_iterable(map(self._tokenize_piece, pieces))
                sized += map(self.vocabulary.id_and_nbytes, tokens)
            else:
                sized.append((added_id, len(segment.encode())))
        return list(token_spans(text, sized))

    def trace_merges(self, text: str, **options: Unpack[EncodeOptions]) -> list[MergeTrace]:
        """Return the pre-tokenizer pieces of `text` with merges and ids; options as in `encode`."""
        from gpt2np.tokenizer.trace import MergeTrace

        traces = []
        for segment, added_id in self._segments(text, **options):
            if added_id is not None:
                traces.append(MergeTrace(segment, (), (added_id,)))
                continue
            for piece in self._pre_tokenize(segment):
                traces.append(MergeTrace(piece, self.merge_steps(piece), self._piece_cache[piece]))
        return traces

    def merge_steps(self, piece: str) -> tuple[MergeStep, ...]:
        """Return the merge steps of a pre-tokenizer piece; the cost is quadratic in its length."""
        from gpt2np.tokenizer.trace import merge_steps

        return merge_steps(list(self.vocabulary.spell(piece)), self.vocabulary.ranks)

    def decode(
        self, ids: Iterable[int], errors: str = "replace", *, skip_special_tokens: bool = False
    ) -> str:
        """Decode `ids` to text; `errors` treats invalid UTF-8 as in `bytes.decode`.

        As in transformers, an id without a token decodes to "", even one above `vocab_size`: some
        models have more embeddings than tokens. (tiktoken raises an error.)

        Raises:
            InvalidArgumentError: an id is negative or not an integer.
            UnicodeDecodeError: with errors="strict", the bytes are not UTF-8.
        """
        _check_list("ids", ids, "a list of token ids")
        if skip_special_tokens:
            special = frozenset(self.special_tokens.values())
            ids = [token_id for token_id in ids if token_id not in special]
        return self.decode_bytes(ids).decode("utf-8", errors)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Decode `ids` to bytes; an id without a token, as models with padding have, to b"".

        Raises InvalidArgumentError if an id is negative or not an integer.
        """
        _check_list("ids", ids, "a list of token ids")
        ids = ids if isinstance(ids, list) else list(ids)  # may be read twice
        table = self.vocabulary.token_bytes
        try:
            return b"".join([table[token_id] for token_id in ids])
        except (KeyError, TypeError):  # TypeError: an item can't be a key
            for token_id in ids:
                check_argument(
                    is_integer(token_id) and token_id >= 0, "ids", token_id, "integers from 0"
                )
            return b"".join([table.get(token_id, b"") for token_id in ids])

    def token_texts(self, ids: Iterable[int]) -> list[str]:
        r"""Return the text of each token, for display.

        Bytes of an incomplete character are escaped, as in "\\xf0". An id without a token, such as
        123, becomes "[123]".
        """
        _check_list("ids", ids, "a list of token ids")
        tokens = token_bytes(ids, self.vocabulary.token_bytes)
        return [token.decode("utf-8", "backslashreplace") for token in tokens]

    def streaming_decoder(self, n_skipped: int = 0) -> StreamingDecoder:
        """Return a decoder that takes one id at a time and skips the first `n_skipped` bytes."""
        return StreamingDecoder(self.vocabulary.token_bytes, n_skipped)

    @cached_property
    def sorted_tokens(self) -> list[tuple[bytes, int]]:
        """The bytes and the id of each token that is no added token, sorted."""
        added = {token.id for token in self.vocabulary.added_tokens}
        table = self.vocabulary.token_bytes
        return sorted((token, i) for i, token in table.items() if i not in added)

    def _segments(
        self, text: str, allowed_special: Special = (), disallowed_special: Special = "all"
    ) -> Iterator[Segment]:
        text = replace_surrogates(text)
        allowed = self._resolve_special(allowed_special)
        forbidden = self._resolve_special(disallowed_special) - allowed
        if found := find_first(text, forbidden):
            raise InvalidArgumentError(
                f"the text has the special token {found}; pass allowed_special={{{found!r}}} to "
                "encode it as that token, or disallowed_special=() to encode it as plain text"
            )
        return split_and_normalize(text, self.vocabulary, allowed)

    def _resolve_special(self, choice: Special) -> frozenset[str]:
        if choice == "all":
            return frozenset(self.special_tokens)
        if isinstance(choice, str) or not isinstance(choice, Iterable):
            raise InvalidArgumentError(f'{choice!r} is not a set of texts; give "all", or a set')
        if unknown := set(choice) - set(self.special_tokens):
            raise InvalidArgumentError(
                f"{sorted(unknown)[0]!r} is not a special token of this vocabulary, which has "
                f"{', '.join(self.special_tokens) or 'none'}"
            )
        return frozenset(choice)

    def _encode_plain(self, text: str, ids: list[int]) -> None:
        """Encode `text`, which has no added tokens, and append the token ids to `ids`."""
        for chunk, keys in split_text(text, self.vocabulary.pattern):
            cache = self._word_cache
            if keys is None:
                cache, keys = self._piece_cache, self._pre_tokenize(chunk)
            for key_ids in map(cache.__getitem__, keys):
                ids += key_ids

    def _encode_word(self, key: str) -> tuple[int, ...]:
        if self._splits_whitespace and key.isascii():
            if key.isalpha():
                return self._encode_piece(" " + key)
            word = key.strip(ASCII_PUNCTUATION)
            if word.isalpha():
                before, after = key.split(word, 1)
                pieces = self._piece_cache
                if before:
                    return pieces[" " + before] + pieces[word] + pieces[after]
                return self._word_cache[word] + pieces[after]
        split = self._pre_tokenize(word_text(key))
        return tuple(chain.from_iterable(map(self._piece_cache.__getitem__, split)))

    def _encode_piece(self, piece: str) -> tuple[int, ...]:
        spelled = self.vocabulary.spell(piece)
        if self.vocabulary.can_ignore_merges and (whole := self._ids.get(spelled)) is not None:
            return (whole,)
        if len(spelled) <= _SHORT_PIECE:
            return self._merge_chunk(spelled)
        chunks = split_at_unjoinable(spelled, self._joinable_pairs)
        return tuple(chain.from_iterable(map(self._chunk_cache.__getitem__, chunks)))

    @cached_property
    def _joinable_pairs(self) -> JoinablePairs:
        return find_joinable_pairs(self.vocabulary.ranks)

    def _merge_chunk(self, spelled: str) -> tuple[int, ...]:
        tokens = merge_pairs(spelled, self.vocabulary.ranks)
        if self.vocabulary.byte_level:
            return tuple([self._ids[token] for token in tokens])
        return tuple([self.vocabulary.id_and_nbytes(token)[0] for token in tokens])

    def _tokenize_piece(self, piece: str) -> list[str]:
        spelled = self.vocabulary.spell(piece)
        if self.vocabulary.can_ignore_merges and spelled in self._ids:
            return [spelled]
        return merge_pairs(spelled, self.vocabulary.ranks)


class StreamingDecoder:
    """Decodes token ids one at a time, and returns only complete characters.

    A token may end in the middle of a UTF-8 character. The decoder then withholds the incomplete
    character until further tokens complete it. The joined texts from `push` and `finish` equal the
    text that `Tokenizer.decode` returns for all ids. Invalid UTF-8 becomes U+FFFD.
    """

    def __init__(self, tokens: Mapping[int, bytes], n_skipped: int = 0) -> None:
        self._tokens = tokens
        self._n_skipped = n_skipped  # bytes of the first tokens that are not decoded
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Return the text that `token_id` completes, or "" if it completes no character.

        An id without a token decodes to "", because some models have more embeddings than tokens.
        """
        new = self._tokens.get(token_id, b"")
        if self._n_skipped:
            new, self._n_skipped = new[self._n_skipped :], max(0, self._n_skipped - len(new))
        return self._decoder.decode(new)

    def finish(self) -> str:
        """Return the end of the text: U+FFFD if a character is incomplete, else ""."""
        return self._decoder.decode(b"", final=True)


def _check_list(name: str, value: object, expected: str) -> None:
    is_list = isinstance(value, Iterable) and not isinstance(value, (str, bytes))
    check_argument(is_list, name, value, expected)
