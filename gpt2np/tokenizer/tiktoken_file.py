"""OpenAI's `.tiktoken` files: each line has the bytes of a token in base64, and its rank.

The ranks are the ids. There are no merges: any two neighbours that join to a token may be merged,
the lowest id first, and a piece that is a token needs no merging (tiktoken/src/lib.rs). The pattern
and the special tokens are not in the file; tiktoken has them in its code.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

from gpt2np.data.files import check_is_file
from gpt2np.errors import TokenizerError
from gpt2np.tokenizer.added_tokens import AddedToken
from gpt2np.tokenizer.pre_tokenizer import (
    CL100K_PATTERN,
    GPT2_PATTERN,
    O200K_PATTERN,
    QWEN2_PATTERN,
)
from gpt2np.tokenizer.vocabulary import Vocabulary, bytes_to_chars, check_bytes, check_ids

PATTERNS = {
    "cl100k_base": CL100K_PATTERN,
    "o200k_base": O200K_PATTERN,
    "qwen": QWEN2_PATTERN,
}
"""Stem of a file's name → its pre-tokenizer pattern; files of other names have GPT-2's."""


def read_tiktoken(
    path: Path, pattern: str | None = None, special_tokens: Mapping[str, int] | None = None
) -> Vocabulary:
    """Read a `.tiktoken` file.

    Args:
        path: the file.
        pattern: pre-tokenizer pattern; None for the one in PATTERNS, or else GPT-2's.
        special_tokens: text of a special token → its id.

    Raises:
        TokenizerError: the file can't be read, or a line is malformed (its number is named).
    """
    check_is_file(path, TokenizerError)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise TokenizerError(f"can't read {path}: {error.strerror}") from error
    ids: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            token, rank = _parse_line(line, number, path)
            if token in ids:
                raise TokenizerError(f"{path}, line {number}: {line!r} repeats a token")
            ids[token] = rank
    added = [AddedToken(text, token_id) for text, token_id in (special_tokens or {}).items()]
    check_ids(ids | {token.content: token.id for token in added}, path)
    check_bytes(ids, path)
    return Vocabulary(
        ids,
        _derive_ranks(ids),
        tuple(sorted(added, key=lambda token: token.id)),
        (pattern or PATTERNS.get(path.stem.lower(), GPT2_PATTERN),),
        ignore_merges=True,
    )


def _parse_line(line: bytes, number: int, path: Path) -> tuple[str, int]:
    try:
        encoded, rank = line.split()
        return bytes_to_chars(base64.b64decode(encoded, validate=True)), int(rank)
    except ValueError as error:
        raise TokenizerError(
            f"{path}, line {number}: expected a token in base64 and its rank, found {line!r}"
        ) from error


def _derive_ranks(ids: dict[str, int]) -> dict[str, int]:
    """Return every merge of two tokens to a third, under the rank of the third."""
    return {
        f"{token[:cut]} {token[cut:]}": rank
        for token, rank in ids.items()
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    }
