"""Operation and byte counts of GPT-2, derived from the config.

Only matrix products are counted; all other operations are negligible. `prefill_flops` counts only
the operations that the next token's logits require. So speed limits derived from these counts are
upper bounds.

Shape letters: C channels, F MLP width, L layers, N tokens, V vocabulary.
"""

from __future__ import annotations

from gpt2np.model import GPT2Config


def block_parameters(config: GPT2Config) -> int:
    """Count the weights in the four matrices of a block: (C, 3C), (C, C), (C, F), (F, C)."""
    return 4 * config.n_embd**2 + 2 * config.n_embd * config.n_inner


def weight_bytes_per_token(config: GPT2Config, itemsize: int = 4) -> int:
    """Count the bytes of weights that are read to decode one token.

    The count covers the matrices of all blocks and the unembedding, but not the rows that are read
    from the token and position embeddings. `itemsize` is the number of bytes per weight.
    """
    head = config.vocab_size * config.n_embd
    return itemsize * (config.n_layer * block_parameters(config) + head)


def prefill_flops(config: GPT2Config, tokens: int) -> int:
    """Count the floating-point operations of a prefill of `tokens` tokens.

    Causal attention has tokens · (tokens + 1) / 2 query-key pairs. The last block computes keys and
    values for all tokens, but all other activations only for the last token.
    """
    width, parameters = config.n_embd, block_parameters(config)
    pair = 4 * width  # per channel, two operations for the score and two for the weighted value
    block = 2 * parameters * tokens + pair * (tokens * (tokens + 1) // 2)
    keys_and_values = 2 * width**2
    last_block = 2 * keys_and_values * tokens + 2 * (parameters - keys_and_values) + pair * tokens
    head = 2 * width * config.vocab_size
    return (config.n_layer - 1) * block + last_block + head
