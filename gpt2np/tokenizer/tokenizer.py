"""Text ↔ ids: GPT-2's byte-level byte-pair encoding (Radford et al. 2019, section 2.2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property, partial
from itertools import chain
from pathlib import Path

from gpt2np.errors import InvalidArgumentError, TokenizerError
from gpt2np.tokenizer.added import find_first
from gpt2np.tokenizer.cache import BoundedCache
from gpt2np.tokenizer.chunks import BEFORE_LINES, BEFORE_WORDS, SIGNS, blocks, chunks, text_of
from gpt2np.tokenizer.decoder import StreamingDecoder
from gpt2np.tokenizer.formats import read_vocabulary, write_vocabulary
from gpt2np.tokenizer.merge import merge_pairs
from gpt2np.tokenizer.parts import Part, parts_of, well_formed
from gpt2np.tokenizer.split import splitter
from gpt2np.tokenizer.vocabulary import END_OF_TEXT, Vocabulary

TYPE_CHECKING = False  # typing, and what only some methods need, would double the time to import
if TYPE_CHECKING:
    from array import array
    from typing import Any, Literal

    import numpy as np
    from numpy.typing import NDArray

    from gpt2np.tokenizer.explain import ExplainedPiece
    from gpt2np.tokenizer.offsets import TokenSpan

    Special = Literal["all"] | Collection[str]

_BATCH_CHARACTERS = 1 << 18
_PIECES_BYTES = 16 << 20  # bound of what is remembered of single pieces …
_CHUNKS_BYTES = 48 << 20  # … and of chunks, of which there are more


class Tokenizer:
    """Encodes text to ids and decodes ids to text; ids equal those of tiktoken and `tokenizers`.

        >>> tokenizer = Tokenizer.load("path/to/gpt2")
        >>> tokenizer.encode("GPT2 was created by OpenAI")
        [38, 11571, 17, 373, 2727, 416, 4946, 20185]

    A tokenizer may be shared by threads, and pickled for other processes. What it remembers of the
    texts that it saw is bounded (64 MiB) and changes nothing but its speed.

    What looks like a special token in a text may come from anybody. So `encode` and its kin take
    two keyword arguments, with tiktoken's meaning:

        encode("<|endoftext|>")                                → InvalidArgumentError
        encode("<|endoftext|>", disallowed_special=())         → [27, 91, 437, …], plain text
        encode("<|endoftext|>", allowed_special="all")         → [50256], the special token
        encode("<|endoftext|>", allowed_special={"<|pad|>"})   → InvalidArgumentError

    and `errors`, which says what becomes of lone surrogates, which UTF-8 can't express: "replace"
    makes them U+FFFD (tiktoken's way), "strict" refuses them, and "surrogateescape" takes U+DC80 to
    U+DCFF for the bytes 0x80 to 0xFF, so that any bytes make the round trip:

        ids = encode(data.decode("utf-8", "surrogateescape"), errors="surrogateescape")
        decode_bytes(ids) == data

    Attributes:
        vocabulary: what the files say.
        special_tokens: text of a special token → its id.
        vocab_size: the number of ids, that is the highest id plus one.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.special_tokens = {
            token.content: token.id for token in vocabulary.added if token.special
        }
        self.vocab_size = vocabulary.size
        self._split = splitter(vocabulary.patterns)
        self._cuts_words = len(vocabulary.patterns) == 1 and vocabulary.patterns[0] in BEFORE_WORDS
        self._cuts_lines = self._cuts_words and vocabulary.patterns[0] in BEFORE_LINES
        self._ids = vocabulary.ids
        self._takes_whole = vocabulary.whole_pieces or vocabulary.self_encoding
        self._pieces = BoundedCache(self._ids_of_piece, _PIECES_BYTES)
        self._chunks = BoundedCache(self._ids_of_chunk, _CHUNKS_BYTES)

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read a folder's `tokenizer.json`, or `vocab.json` + `merges.txt`, or OpenAI's
        `encoder.json` + `vocab.bpe`; or one such file, or a `.tiktoken` file.

        Of a folder, `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json` are
        read, too, to the effect that they have in transformers 5: see
        `gpt2np.tokenizer.special_tokens`. A `tokenizer.json` that is named itself is read alone.

        A model's name is no path; `gpt2np.hub.find_vocabulary("gpt2").folder` is where its
        vocabulary is, found or fetched as for `gpt2np.load`.

        Raises:
            TokenizerError: the files are missing, damaged, or don't fit each other; or they ask
                for something that gpt2np doesn't do.
        """
        if path == "":
            raise TokenizerError("the path of the vocabulary is empty; name a folder or a file")
        return cls(read_vocabulary(Path(path)))

    def __repr__(self) -> str:
        return f"<Tokenizer of {self.vocab_size} ids, special tokens {list(self.special_tokens)}>"

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[Vocabulary]]:
        return type(self), (self.vocabulary,)

    @classmethod
    def from_tiktoken(
        cls,
        file: str | Path,
        *,
        pattern: str | None = None,
        special_tokens: Mapping[str, int] | None = None,
    ) -> Tokenizer:
        """Read a `.tiktoken` file, which holds neither split pattern nor special tokens.

        Args:
            file: the file.
            pattern: the split pattern; None for that of OpenAI's or Qwen's file of this name, or
                else GPT-2's.
            special_tokens: text of a special token → its id.

        Raises:
            TokenizerError: the file is missing or damaged.
        """
        from gpt2np.tokenizer.tiktoken_file import read_tiktoken

        return cls(read_tiktoken(Path(file), pattern, special_tokens))

    def save(self, folder: str | Path) -> None:
        """Write the vocabulary as Hugging Face does: `tokenizer.json`, `tokenizer_config.json` and,
        where these can hold it, `vocab.json` + `merges.txt`.

        The roles of special tokens (end, padding, mask, …) are written as they were read; without
        any, `<|endoftext|>` is what begins and ends a text.

        Raises:
            TokenizerError: Hugging Face's format can't express this vocabulary.
            OSError: the folder can't be made or written to.
        """
        write_vocabulary(self.vocabulary, Path(folder))

    @property
    def eos_token_id(self) -> int | None:
        """The id with which texts end: that of the vocabulary's `eos_token`, or else of
        `<|endoftext|>`; None in a vocabulary without them."""
        ids = {token.content: token.id for token in self.vocabulary.added}
        end = self.vocabulary.roles.get("eos_token")
        return ids[end] if end in ids else self.special_tokens.get(END_OF_TEXT)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the vocabulary."""
        from hashlib import sha256

        return sha256(repr(self.vocabulary).encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def splits_before_whitespace(self) -> bool:
        """Whether a text may be cut before white space that follows a visible character.

        The ids of the parts, joined, are then those of the text.
        """
        return (
            self._cuts_lines
            and not self.vocabulary.prefix_space
            and all(token.special for token in self.vocabulary.added)
        )

    def encode(
        self,
        text: str,
        *,
        allowed_special: Special = (),
        disallowed_special: Special = "all",
        errors: str = "replace",
    ) -> list[int]:
        """The ids of `text`. The keyword arguments are explained above.

        Raises:
            InvalidArgumentError: `text` holds a special token that is disallowed and not allowed, a
                lone surrogate that `errors` doesn't admit, or a character that has no token.
        """
        ids: list[int] = []
        for part in self._parts(text, allowed_special, disallowed_special, errors):
            if part.added is None:
                self._encode_plain(part.text, ids)
            else:
                ids.append(part.added)
        return ids

    def encode_to_numpy(self, text: str, **options: Any) -> NDArray[np.uint16 | np.uint32]:
        """The ids of `text` as an array (N,), uint16 if every id fits, else uint32."""
        import numpy as np

        return np.array(
            self.encode(text, **options), np.uint16 if self.vocab_size <= 1 << 16 else np.uint32
        )

    def encode_batch(
        self, texts: Iterable[str], *, processes: int = 1, **options: Any
    ) -> list[list[int]]:
        """The ids of each of `texts`; the other options are those of `encode`.

        More than one process pays from some ten megabytes on: each has to start, and to learn the
        words anew. Threads don't help where Python runs one at a time.
        """
        if isinstance(texts, str):
            raise InvalidArgumentError("texts is one text; give a list of them, or use encode")
        if processes == 1:
            return [self.encode(text, **options) for text in texts]
        if processes < 1:
            raise InvalidArgumentError(f"processes is {processes}; it must be at least 1")
        from gpt2np.data.workers import map_in_order

        encode, batches = partial(_encode_packed, self, options), _batches(texts)
        packed = map_in_order(encode, batches, processes)
        return [ids.tolist() for _, batch in packed for ids in batch]

    def count(self, text: str, **options: Any) -> int:
        """The number of ids of `text`; the options are those of `encode`."""
        return len(self.encode(text, **options))

    def offsets(
        self,
        text: str,
        *,
        allowed_special: Special = (),
        disallowed_special: Special = "all",
        errors: str = "replace",
    ) -> list[TokenSpan]:
        """Each id of `text` with the characters and bytes of `text` that it came from.

        A token that holds only some bytes of a character spans the whole character (so do its
        neighbours that hold the others), but only its own bytes. Where the vocabulary normalizes
        texts, the spans are those of `tokenizers`, and bytes are those of the spanned characters.
        `errors` comes first: with "replace", two surrogates that make a character count as one.

        Raises:
            InvalidArgumentError: as `encode`.
        """
        from gpt2np.tokenizer.offsets import byte_starts, spans_of_part

        text = well_formed(text, errors)
        starts = byte_starts(text)
        spans: list[TokenSpan] = []
        for part in self._parts(text, allowed_special, disallowed_special, errors, spans=True):
            if part.added is None:
                tokens = chain.from_iterable(map(self._tokens_of_piece, self._split(part.text)))
                sized = [self.vocabulary.id_and_bytes(token) for token in tokens]
            else:
                sized = [(part.added, len(part.text.encode()))]
            spans += spans_of_part(part, sized, text, starts)
        return spans

    def explain(
        self,
        text: str,
        *,
        allowed_special: Special = (),
        disallowed_special: Special = "all",
        errors: str = "replace",
    ) -> list[ExplainedPiece]:
        """How `text` becomes ids: its pieces, each with every merge. Their ids join to `encode`'s.

        Raises:
            InvalidArgumentError: as `encode`.
        """
        from gpt2np.tokenizer.explain import ExplainedPiece, merge_steps

        explained = []
        for part in self._parts(text, allowed_special, disallowed_special, errors):
            if part.added is not None:
                explained.append(ExplainedPiece(part.text, (), (part.added,)))
                continue
            for piece in self._split(part.text):
                spelled = self.vocabulary.spell(piece)
                whole = self.vocabulary.whole_pieces and spelled in self.vocabulary.ids
                steps = () if whole else merge_steps(list(spelled), self.vocabulary.ranks)
                explained.append(ExplainedPiece(piece, steps, self._pieces[piece]))
        return explained

    def decode(
        self, ids: Iterable[int], errors: str = "replace", *, skip_special: bool = False
    ) -> str:
        """The text of `ids`; what is not valid UTF-8 is treated as `bytes.decode` does.

        Args:
            ids: the ids.
            errors: see `bytes.decode`.
            skip_special: leave special tokens out.

        Raises:
            InvalidArgumentError: an id that the vocabulary doesn't have.
            UnicodeDecodeError: with errors="strict", bytes that are not UTF-8.
        """
        if skip_special:
            special = frozenset(self.special_tokens.values())
            ids = [number for number in ids if number not in special]
        return self.decode_bytes(ids).decode("utf-8", errors)

    def decode_batch(self, batch: Iterable[Iterable[int]], errors: str = "replace") -> list[str]:
        """The text of each sequence of ids in `batch`: see `decode`."""
        return [self.decode(ids, errors) for ids in batch]

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of `ids`; InvalidArgumentError for one that is not in the vocabulary."""
        table = self.vocabulary.token_bytes
        try:
            return b"".join([table[number] for number in ids])
        except KeyError as error:
            raise InvalidArgumentError(
                f"id {error.args[0]} is not in the vocabulary of {len(table)} tokens"
            ) from error

    def streaming_decoder(self) -> StreamingDecoder:
        """A decoder that takes one id after another."""
        return StreamingDecoder(self.vocabulary.token_bytes)

    def _parts(
        self,
        text: str,
        allowed: Special,
        disallowed: Special,
        errors: str,
        *,
        spans: bool = False,
    ) -> Iterator[Part]:
        allowed = self._special(allowed)
        forbidden = self._special(disallowed) - allowed
        if found := find_first(text, forbidden):
            raise InvalidArgumentError(
                f"the text holds the special token {found}; pass allowed_special={{{found!r}}} to "
                "encode it as that token, or disallowed_special=() to encode it as plain text"
            )
        return parts_of(well_formed(text, errors), self.vocabulary, allowed, with_spans=spans)

    def _special(self, choice: Special) -> frozenset[str]:
        if choice == "all":
            return frozenset(self.special_tokens)
        if isinstance(choice, str):
            raise InvalidArgumentError(f'{choice!r} is one text; give "all", or a set of texts')
        if unknown := set(choice) - set(self.special_tokens):
            raise InvalidArgumentError(
                f"{sorted(unknown)[0]!r} is not a special token of this vocabulary; it has "
                f"{', '.join(self.special_tokens) or 'none'}"
            )
        return frozenset(choice)

    def _encode_plain(self, text: str, ids: list[int]) -> None:
        """Append the ids of a text without added tokens to `ids`."""
        for block in blocks(text) if self._cuts_words else (text,):
            keys = chunks(block, before_lines=self._cuts_lines) if self._cuts_words else None
            known, keys = (self._chunks, keys) if keys else (self._pieces, self._split(block))
            for ids_of_key in map(known.__getitem__, keys):
                ids += ids_of_key

    def _ids_of_chunk(self, key: str) -> tuple[int, ...]:
        if self._cuts_lines and key.isascii():
            if key.isalpha():
                return self._ids_of_piece(" " + key)
            word = key.strip(SIGNS)
            if word.isalpha():
                before, after = key.split(word, 1)
                if before:
                    return self._pieces[" " + before] + self._pieces[word] + self._pieces[after]
                return self._chunks[word] + self._pieces[after]
        pieces = self._split(text_of(key))
        return tuple(chain.from_iterable(map(self._pieces.__getitem__, pieces)))

    def _ids_of_piece(self, piece: str) -> tuple[int, ...]:
        spelled = self.vocabulary.spell(piece)
        if self._takes_whole and (whole := self._ids.get(spelled)) is not None:
            return (whole,)
        tokens = merge_pairs(list(spelled), self.vocabulary.ranks)
        if self.vocabulary.byte_level:
            return tuple([self._ids[token] for token in tokens])
        return tuple([self.vocabulary.id_and_bytes(token)[0] for token in tokens])

    def _tokens_of_piece(self, piece: str) -> list[str]:
        spelled = self.vocabulary.spell(piece)
        if self._takes_whole and spelled in self._ids:
            return [spelled]
        return merge_pairs(list(spelled), self.vocabulary.ranks)


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """`texts` in lists that are worth the way to another process."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if characters > _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    yield batch


def _encode_packed(
    tokenizer: Tokenizer, options: Mapping[str, Any], texts: list[str]
) -> list[array[int]]:
    """The ids in arrays, which travel between processes at a tenth of the cost of lists."""
    from array import array

    return [array("I", tokenizer.encode(text, **options)) for text in texts]
