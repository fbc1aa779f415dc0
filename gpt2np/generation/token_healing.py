"""Token healing: the last tokens of a prompt are dropped, and generated again with what follows.

A prompt that ends in a space or within a word ends where the model's tokens would go on: after
"Once upon a time", the model expects " there", not " " and "there". Healing drops the longest end
of the prompt that begins a longer token. The new tokens must then spell the dropped text first.

`transformers` strips spaces from the prompt, drops exactly one token, and selects the most likely
token that begins with the dropped text. Here, the dropped text may have several tokens, also spaces
and parts of characters. The options select the new tokens among all those that spell the dropped
text, or a part of it, or more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpt2np.kernels.array import BoolArray
from gpt2np.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenHealing:
    """The constraint of new tokens to those that spell the dropped text; see `Constraint`.

    Attributes:
        remaining: the dropped bytes that the new tokens do not yet spell; at least one.
        tokenizer: the tokenizer of the prompt.
        vocab_size: V, the model's number of token ids.
    """

    remaining: bytes
    tokenizer: Tokenizer
    vocab_size: int
    complete = False

    def allowed(self) -> BoolArray:
        """Return a mask of the token ids that may come next. Returns (V,)."""
        mask = np.zeros(self.vocab_size, bool)
        tokens, n_remaining = self.tokenizer.sorted_tokens, len(self.remaining)
        for n in range(1, n_remaining + 1):
            beginning = self.remaining[:n]
            for i in range(bisect_left(tokens, (beginning,)), len(tokens)):
                token, token_id = tokens[i]
                is_longer = token != beginning
                if not token.startswith(beginning) or (is_longer and n < n_remaining):
                    break
                mask[token_id] = True
        return mask

    def advance(self, token_id: int) -> TokenHealing | None:
        """Return the state after one more allowed token; None once the dropped text is spelled."""
        n = len(self.tokenizer.vocabulary.token_bytes[token_id])
        if n >= len(self.remaining):
            return None
        return TokenHealing(self.remaining[n:], self.tokenizer, self.vocab_size)


def heal(
    tokenizer: Tokenizer, ids: Sequence[int], bos_token_id: int | None, vocab_size: int
) -> tuple[list[int], TokenHealing | None]:
    """Drop the longest end of a prompt that begins a longer token; return the rest.

    Special tokens and ids without text stay. If no id is left, the rest is `bos_token_id`; if that
    is None, the first id stays. Returns the ids, and the constraint for the new tokens, or None if
    nothing was dropped.
    """
    tokens, table = tokenizer.sorted_tokens, tokenizer.vocabulary.token_bytes
    added = {token.id for token in tokenizer.vocabulary.added_tokens}
    longest = max((len(token) for token, _ in tokens), default=0)
    n_dropped, dropped, end = 0, b"", b""
    for n, token_id in enumerate(reversed(ids), 1):
        if token_id in added or token_id not in table or (n == len(ids) and bos_token_id is None):
            break
        end = table[token_id] + end
        if len(end) >= longest:
            break
        i = bisect_left(tokens, (end + b"\0",))  # the first token after `end`
        if i < len(tokens) and tokens[i][0].startswith(end):
            n_dropped, dropped = n, end
    if not n_dropped:
        return list(ids), None
    rest = list(ids[: len(ids) - n_dropped]) or [bos_token_id or 0]
    return rest, TokenHealing(dropped, tokenizer, vocab_size)
