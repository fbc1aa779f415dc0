"""Checkpoints as transformers writes them and as others do: its logits, or a refusal.

Sizes, dtypes, switches, names, shards and layouts; the memory that loading takes.
"""

import copy
import gc
import itertools
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import load_reference, reference_logits, save_reference, to_float64
from safetensors.torch import load_file, save_file
from test_logits_parity import check_logits, compare_logits

from gpt2np import GPT2, CheckpointError

INDEX = "model.safetensors.index.json"

# Dimension → label → what it changes; the first, without a label, is the default. A case takes one
# choice of each.
DIMENSIONS = {
    "shape": {
        "": {"n_embd": 64, "n_head": 4, "n_layer": 3, "vocab_size": 300, "n_positions": 64},
        "1 layer": {"n_embd": 96, "n_head": 6, "n_layer": 1, "vocab_size": 257, "n_positions": 33},
        "7 by 13": {"n_embd": 91, "n_head": 7, "n_layer": 2, "vocab_size": 311, "n_positions": 50},
        "1 head": {"n_embd": 33, "n_head": 1, "n_layer": 4, "vocab_size": 299, "n_positions": 150},
        "D 1": {"n_embd": 32, "n_head": 32, "n_layer": 2, "vocab_size": 128, "n_positions": 40},
    },
    "n_inner": {"": {}, "F 77": {"n_inner": 77}, "F 64": {"n_inner": 64}, "F 91": {"n_inner": 91}},
    "activation": {
        "": {},
        "gelu": {"activation_function": "gelu"},
        "relu": {"activation_function": "relu"},
        "silu": {"activation_function": "silu"},
        "swish": {"activation_function": "swish"},
        "tanh": {"activation_function": "tanh"},
        "pytorch_tanh": {"activation_function": "gelu_pytorch_tanh"},
    },
    "scale": {"": {}, "unscaled": {"scale_attn_weights": False}},
    "by layer": {"": {}, "by layer": {"scale_attn_by_inverse_layer_idx": True}},
    "upcast": {"": {}, "upcast": {"reorder_and_upcast_attn": True}},
    "epsilon": {
        "": {},
        "eps 1e-3": {"layer_norm_epsilon": 1e-3},
        "eps 0.2": {"layer_norm_epsilon": 0.2},
        "eps 1e-12": {"layer_norm_epsilon": 1e-12},
    },
    "dtype": {
        "": {},
        "float16": {"dtype": "float16"},
        "bfloat16": {"dtype": "bfloat16"},
        "float64": {"dtype": "float64"},
    },
    "shards": {"": {}, "2 shards": {"shards": 2}, "6 shards": {"shards": 6}},
    "head": {
        "": {},
        "base": {"base": True},
        "untied": {"tie_word_embeddings": False},
        "tied + head": {"tie_word_embeddings": False, "said_to_be_tied": True},
        "tied + same": {"tie_word_embeddings": False, "said_to_be_tied": True, "same_head": True},
    },
    "names": {"": {}, "hidden_size": {"other_names": True}},
}
OTHER_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
}


def one_at_a_time():
    """The default, and every other choice alone."""
    default = dict.fromkeys(DIMENSIONS, "")
    yield default
    for dimension, choices in DIMENSIONS.items():
        yield from (default | {dimension: label} for label in choices if label)


def pairwise(rng):
    """Cases in which every two choices of different dimensions meet at least once."""
    left = {
        ((a, label_a), (b, label_b))
        for a, b in itertools.combinations(DIMENSIONS, 2)
        for label_a, label_b in itertools.product(DIMENSIONS[a], DIMENSIONS[b])
    }
    while left:
        missing = sorted(left)
        drawn = [
            {dimension: rng.choice(list(choices)) for dimension, choices in DIMENSIONS.items()}
            | dict(rng.choice(missing))
            for _ in range(30)
        ]
        best = max(drawn, key=lambda case: len(left.intersection(pairs(case))))
        left.difference_update(pairs(best))
        yield best


def pairs(case):
    return set(itertools.combinations(case.items(), 2))


def name_of(case):
    return ", ".join(filter(None, case.values())) or "default"


CASES = {name_of(case): case for case in (*one_at_a_time(), *pairwise(random.Random(0)))}


def save_case(folder, case):
    """The case's checkpoint, written by transformers; only config.json may be changed after it."""
    options = {"spread": 0.1}
    for dimension, label in case.items():
        options |= DIMENSIONS[dimension][label]
    said_to_be_tied = options.pop("said_to_be_tied", False)
    other_names = options.pop("other_names", False)
    save_reference(folder, **options)
    if said_to_be_tied:
        change_config(folder, tie_word_embeddings=True)
    if other_names:
        config = read_json(folder / "config.json")
        renamed = {OTHER_NAMES.get(name, name): value for name, value in config.items()}
        (folder / "config.json").write_text(json.dumps(renamed))


def read_json(path):
    return json.loads(path.read_text())


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(read_json(path) | changes))


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(name, tmp_path, show):
    case = CASES[name]
    save_case(tmp_path, case)
    assert (tmp_path / INDEX).exists() == bool(case["shards"])
    model, reference = GPT2.from_folder(tmp_path), load_reference(tmp_path)
    rng = np.random.default_rng(1)
    lengths = [1, 2, model.config.n_positions]
    sequences = [rng.integers(0, model.config.vocab_size, length) for length in lengths]
    title = f"{len(CASES)} checkpoints written by transformers: largest |Δlogit|"
    check_logits(f"{name:58}", model, reference, sequences, show, title)


@pytest.mark.parametrize(
    "changes",
    [
        *({"activation_function": name} for name in ("gelu", "relu", "silu", "tanh")),
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True},
        {"layer_norm_epsilon": 1e-3},
    ],
    ids=str,
)
def test_a_switch_changes_the_logits_far_more_than_parity_lets_pass(changes, tmp_path):
    save_case(tmp_path, CASES["default"])
    ids = np.arange(60)
    before = GPT2.from_folder(tmp_path).forward([ids])
    change_config(tmp_path, **changes)
    after = GPT2.from_folder(tmp_path).forward([ids])
    assert np.abs(after - before).max() > 1e-3
