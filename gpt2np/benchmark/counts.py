"""What must be read and multiplied for a token: worked out from the config, nothing is measured.

Both are the least that gives the next token's logits, so that nothing can be faster than the
limits that follow from them. C channels, F MLP width, L layers, V vocabulary.
"""

from __future__ import annotations

from gpt2np.model import GPT2Config


def block_parameters(config: GPT2Config) -> int:
    """Numbers in the four matrices of a block: (C, 3C), (C, C), (C, F), (F, C)."""
    return 4 * config.n_embd**2 + 2 * config.n_embd * config.n_inner


def weight_bytes_per_token(config: GPT2Config, itemsize: int = 4) -> int:
    """Bytes of weights that decoding one token reads: every block's matrices and the head.

    Of the embeddings one row each is read, which is nothing beside these; where the token
    embedding is the head, it is read as that. itemsize: bytes a number.
    """
    head = config.vocab_size * config.n_embd
    return itemsize * (config.n_layer * block_parameters(config) + head)


def prefill_flops(config: GPT2Config, tokens: int) -> int:
    """Floating-point operations of the products for a prompt of so many tokens.

    A query attends to what is not behind it, tokens (tokens + 1) / 2 pairs in all; and the last
    block needs the keys and values of all tokens, but all else only for the last of them.
    """
    width, parameters = config.n_embd, block_parameters(config)
    pair = 4 * width  # two operations a channel for the score, two for mixing the value
    block = 2 * parameters * tokens + pair * (tokens * (tokens + 1) // 2)
    keys_and_values = 2 * width**2
    last_block = 2 * keys_and_values * tokens + 2 * (parameters - keys_and_values) + pair * tokens
    head = 2 * width * config.vocab_size
    return (config.n_layer - 1) * block + last_block + head
