"""Byte and operation counts against numbers worked out by hand."""

from gpt2np.benchmark.counts import block_parameters, prefill_flops, weight_bytes_per_token
from gpt2np.model import GPT2Config

SMALL = GPT2Config(vocab_size=5, n_positions=4, n_embd=2, n_layer=2, n_head=1, n_inner=8)


def test_bytes_per_token():
    # A block: 2 × 6 for q, k, v, 2 × 2 for their projection, 2 × 8 and 8 × 2 for the MLP.
    assert block_parameters(SMALL) == 12 + 4 + 16 + 16
    assert weight_bytes_per_token(SMALL) == 4 * (2 * 48 + 5 * 2)
    assert weight_bytes_per_token(SMALL, itemsize=8) == 8 * 106


def test_bytes_per_token_of_gpt2_small():
    # 124,439,808 parameters, less 1024 × 768 positions, and less biases and layer norms.
    vectors = 12 * (2304 + 768 + 3072 + 768 + 4 * 768) + 2 * 768
    assert weight_bytes_per_token(GPT2Config()) == 4 * (124_439_808 - 1024 * 768 - vectors)


def test_flops_of_three_tokens():
    first = 3 * 2 * 48 + (1 + 2 + 3) * (2 * 2 + 2 * 2)  # products, and 6 pairs: score and mix
    keys_and_values = 3 * 2 * (2 * 4)
    query_and_rest = 2 * (2 * 2 + 2 * 2 + 2 * 8 + 8 * 2)  # of the last token
    pairs = 3 * (2 * 2 + 2 * 2)
    head = 2 * 2 * 5
    assert prefill_flops(SMALL, 3) == first + keys_and_values + query_and_rest + pairs + head == 508


def test_flops_of_one_token_are_two_for_each_weight_and_the_pairs():
    config = GPT2Config()
    pairs = 12 * 4 * 768
    assert prefill_flops(config, 1) == 2 * weight_bytes_per_token(config) // 4 + pairs
