"""The end of a prompt: token healing, and the notice about a space.

Token healing drops the last tokens of a prompt, and generates them again with what follows.

A prompt that ends in a space or within a word ends where the model's tokens would go on: after
"Once upon a time", the model expects " there", not " " and "there". Healing drops the longest end
of the prompt that begins a longer token. The new tokens are the dropped ones, up to a token that
begins with the rest of the dropped text.

`transformers` strips spaces from the prompt, drops exactly one token, and takes the most likely
token that begins with the dropped text, with a bonus for the dropped token. Here, several tokens,
spaces and parts of characters can be dropped, and the options select the new tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpt2np.generation.options import GenerationOptions
from gpt2np.kernels.array import BoolArray
from gpt2np.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenHealing:
    """The constraint of new tokens to those that spell the dropped text; see `Constraint`.

    Attributes:
        dropped: the dropped ids that the new tokens do not yet spell; at least one.
        tokenizer: the tokenizer of the prompt.
        vocab_size: V, the model's number of token ids.
    """

    dropped: tuple[int, ...]
    tokenizer: Tokenizer
    vocab_size: int
    complete = False

    @property
    def text(self) -> bytes:
        """The dropped text."""
        return self.tokenizer.decode_bytes(self.dropped)

    def allowed(self) -> BoolArray:
        """Return a mask of the token ids that may come next. Returns (V,)."""
        mask = np.zeros(self.vocab_size, bool)
        mask[self.dropped[0]] = True
        tokens, text = self.tokenizer.sorted_tokens, self.text
        for i in range(bisect_left(tokens, (text,)), len(tokens)):
            token, token_id = tokens[i]
            if not token.startswith(text):
                break
            mask[token_id] = True
        return mask

    def advance(self, token_id: int) -> TokenHealing | None:
        """Return the state after one more allowed token; None once the dropped text is spelled."""
        rest = self.dropped[1:]
        is_dropped = token_id == self.dropped[0] and rest
        return TokenHealing(rest, self.tokenizer, self.vocab_size) if is_dropped else None


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
    n_dropped, end = 0, b""
    for n, token_id in enumerate(reversed(ids), 1):
        if token_id in added or token_id not in table or (n == len(ids) and bos_token_id is None):
            break
        end = table[token_id] + end
        if len(end) >= longest:
            break
        i = bisect_left(tokens, (end + b"\0",))  # the first token after `end`
        if i < len(tokens) and tokens[i][0].startswith(end):
            n_dropped = n
    if not n_dropped:
        return list(ids), None
    n_kept = len(ids) - n_dropped
    healing = TokenHealing(tuple(ids[n_kept:]), tokenizer, vocab_size)
    return list(ids[:n_kept]) or [bos_token_id or 0], healing


def prompt_notice(prompt: str, options: GenerationOptions) -> str | None:
    """Return advice on a prompt that ends in a space, else None."""
    if not prompt.endswith(" ") or options.token_healing:
        return None
    advice = "the prompt ends in a space; GPT-2's words begin with their space, so leave it out"
    if options.choices or options.regex:
        return f"{advice} of the prompt, and begin the constraint with it"
    return advice if options.json_schema else f"{advice}, or set `token_healing`"
