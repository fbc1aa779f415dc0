"""GPT-2s with random weights, made without `transformers`."""

import numpy as np

from gpt2np import GPT2, Tokenizer
from gpt2np.checkpoint.config import LM_HEAD, WTE, weight_shapes
from gpt2np.model import GPT2Config
from gpt2np.tokenizer.vocabulary import AddedToken, Vocabulary, bytes_to_chars

SHAPES = {
    "GPT-2 small's width": {"n_embd": 768, "n_head": 12, "n_inner": 3072, "n_layer": 2},
    "GPT-2 XL's width": {"n_embd": 1600, "n_head": 25, "n_inner": 6400, "n_layer": 1},
    "small heads": {"n_embd": 40, "n_head": 5, "n_inner": 100, "n_layer": 4},
}


def random_model(dtype=np.float32, *, tied=True, weight_dtype=None, scale=0.05, **shape):
    """Make a GPT2 whose parameters are all random, with a head of its own if not `tied`."""
    config = GPT2Config(**{"vocab_size": 1031, "n_positions": 1100} | shape)
    shapes = weight_shapes(config)
    shapes |= {} if tied else {LM_HEAD: shapes[WTE]}
    rng = np.random.default_rng(0)
    return GPT2(
        config,
        {
            name: (
                rng.standard_normal(size, np.float32) * scale
                + name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight"))
            ).astype(dtype)
            for name, size in shapes.items()
        },
        weight_dtype=weight_dtype,
    )


def save_byte_model(folder, **shape):
    """Write a tiny model with a context of 64 tokens: a token per byte, some longer, an end."""
    words = [bytes([byte]) for byte in range(256)]
    words += [word.encode() for word in ("aa", "ab", "12", " a", "漢", "😀")]
    ids = {bytes_to_chars(word): i for i, word in enumerate(words)}
    shape = {"n_embd": 8, "n_head": 2, "n_inner": 8, "n_layer": 1, "n_positions": 64} | shape
    random_model(vocab_size=len(ids) + 1, **shape).save(folder)
    Tokenizer(Vocabulary(ids, {}, (AddedToken("<|endoftext|>", len(ids)),))).save(folder)
