"""Small checkpoints by transformers and other writers: equal logits, or a clear error.

Covers shapes, dtypes, config options, names, shards and layouts.
"""

import json
import random
import shutil
from functools import cache

import numpy as np
import pytest
from helpers.logits import check_logits
from helpers.peers import safetensors, torch
from helpers.references import load_reference, reference_logits, save_reference, to_float64

from gpt2np import GPT2, CheckpointError

IDS = np.random.default_rng(2).integers(0, 300, 60)
INDEX = "model.safetensors.index.json"

# Dimension → label → changes of the config or the writer's options. The first choice, without a
# label, is the default. A case takes one choice of each dimension.
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
        name: {"activation_function": name} if name else {}
        for name in ("", "gelu", "relu", "silu", "swish", "tanh", "gelu_pytorch_tanh")
    },
    "scale": {"": {}, "unscaled": {"scale_attn_weights": False}},
    "by layer": {"": {}, "by layer": {"scale_attn_by_inverse_layer_idx": True}},
    "upcast": {"": {}, "upcast": {"reorder_and_upcast_attn": True}},
    "epsilon": {"": {}, "0.2": {"layer_norm_epsilon": 0.2}, "1e-12": {"layer_norm_epsilon": 1e-12}},
    "dtype": {
        name: {"dtype": name} if name else {} for name in ("", "float16", "bfloat16", "float64")
    },
    "shards": {"": {}, "2 shards": {"shards": 2}, "6 shards": {"shards": 6}},
    "head": {
        "": {},
        "base": {"base": True},
        "untied": {"tie_word_embeddings": False},
        "tied + head": {"tie_word_embeddings": False, "declared_tied": True},
        "tied + same": {"tie_word_embeddings": False, "declared_tied": True, "same_head": True},
    },
    "names": {"": {}, "hidden_size": {"use_aliases": True}},
}
ALIASES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
}


# The cases of every run: together they have each choice.
FEW = [
    "default",
    "1 layer, F 77, gelu, unscaled, 1e-12, float16, base",
    "7 by 13, F 91, relu, by layer, 0.2, 2 shards, untied",
    "1 head, silu, upcast, bfloat16, tied + head, hidden_size",
    "D 1, swish, unscaled, by layer, 6 shards, tied + same",
    "F 64, tanh, float64",
    "gelu_pytorch_tanh",
]


def case_of(name):
    """Return the choice of each dimension, by the labels in a name."""
    labels = name.split(", ")
    return {key: next((x for x in labels if x in DIMENSIONS[key]), "") for key in DIMENSIONS}


CHOICES, RNG = [[*choices] for choices in DIMENSIONS.values()], random.Random(0)
ALONE = [label for choices in CHOICES for label in choices if label]
RANDOM = [", ".join(filter(None, map(RNG.choice, CHOICES))) for _ in range(80)]
CASES = {name: case_of(name) for name in [*FEW, *ALONE, *RANDOM]}
NAMES = [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in CASES]
assert {label for name in FEW for label in CASES[name].values()} >= {*ALONE}, "add it to FEW"


def save_case(folder, case):
    """Write a case's checkpoint with transformers; only config.json may be changed afterwards."""
    options = {"spread": 0.1}
    for dimension, label in case.items():
        options |= DIMENSIONS[dimension][label]
    declared_tied = options.pop("declared_tied", False)
    use_aliases = options.pop("use_aliases", False)
    save_reference(folder, **options)
    if declared_tied:
        change_config(folder, tie_word_embeddings=True)
    if use_aliases:
        config = read_json(folder / "config.json")
        renamed = {ALIASES.get(name, name): value for name, value in config.items()}
        (folder / "config.json").write_text(json.dumps(renamed))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """saved(name): the checkpoint of a case, written once; not to be modified."""

    @cache
    def save(name):
        folder = tmp_path_factory.mktemp("case")
        save_case(folder, CASES[name])
        return folder

    return save


@pytest.fixture
def default(saved, tmp_path):
    """A copy of the default case to modify."""
    return shutil.copytree(saved("default"), tmp_path / "default")


@pytest.fixture(scope="module")
def default_logits(saved):
    """The default case's logits by gpt2np and by transformers."""
    return both_logits(saved("default"))


def read_json(path):
    return json.loads(path.read_text())


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(read_json(path) | changes))


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers_and_in_float64_to_its_rounding(name, saved):
    """Both libraries keep all digits of weights stored in float64."""
    folder = saved(name)
    files = list(folder.glob("*.safetensors"))
    assert len(files) in (range(2, 11) if CASES[name]["shards"] else [1])
    model, reference = GPT2.from_folder(folder), load_reference(folder)
    rng = np.random.default_rng(1)
    lengths = [1, 2, model.config.n_positions]
    sequences = [rng.integers(0, model.config.vocab_size, length) for length in lengths]
    check_logits(name, model, reference, sequences)
    model, reference = GPT2.from_folder(folder, "float64"), load_reference(folder, "float64")
    ids = sequences[-1][:33]
    ours, theirs = model.forward([ids]), reference_logits(to_float64(reference), ids)
    assert ours.dtype == theirs.dtype == np.float64
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_inner": None},
        {"n_inner": None, "intermediate_size": 256},
        {"n_embd": 64, "hidden_size": 64},
        {"pruned_heads": {"0": [1]}},
        {"n_ctx": 10, "head_dim": 7, "is_decoder": True, "chunk_size_feed_forward": 8},
        {"layer_norm_eps": 0.1},
        {"dtype": "float64", "torch_dtype": "float16"},
        {"architectures": ["GPT2Model"]},
        {"reorder_and_upcast_attn": True},
    ],
    ids=str,
)
def test_what_a_config_may_say_without_changing_anything(changes, default, default_logits):
    ours, theirs = default_logits
    change_config(default, **changes)
    ours_then, theirs_then = both_logits(default)
    np.testing.assert_array_equal(ours_then, ours)
    np.testing.assert_allclose(theirs_then, theirs, rtol=0, atol=1e-5)


def test_what_a_config_leaves_out_is_as_transformers_has_it(default):
    config = read_json(default / "config.json")
    sizes = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head")
    kept = {name: config[name] for name in sizes}
    (default / "config.json").write_text(json.dumps(kept))
    ours, theirs = both_logits(default)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def both_logits(folder):
    """Return the logits of gpt2np and of transformers."""
    return GPT2.from_folder(folder).forward([IDS]), reference_logits(load_reference(folder), IDS)


# Checkpoints that transformers does not write: other names, layouts and distributions over files.

PREFIX = "transformer."


@pytest.fixture(scope="module", params=["", "F 64"], ids=["F is 4C", "F is C"])
def original(request, saved):
    """A checkpoint written by transformers, and its logits."""
    folder = saved(request.param or "default")
    return folder, GPT2.from_folder(folder).forward([IDS])


@pytest.fixture
def copied(original, tmp_path):
    """A copy of `original` to modify."""
    return shutil.copytree(original[0], tmp_path / "copy")


@pytest.fixture
def sharded(saved, tmp_path):
    """A sharded checkpoint to modify."""
    return shutil.copytree(saved("6 shards"), tmp_path / "sharded")


def change_tensors(path, change):
    """Replace a file's tensors with `change(tensors)`."""
    changed = change(safetensors.load_file(path))
    tensors = {name: tensor.contiguous() for name, tensor in changed.items()}
    safetensors.save_file(tensors, path, {"format": "pt"})


def with_prefix(prefix):
    return lambda tensors: {prefix + n.removeprefix(PREFIX): t for n, t in tensors.items()}


def with_masks(dtype):
    """Add the causal masks of old checkpoints."""

    def change(tensors):
        mask = torch.ones(64, 64).tril().to(getattr(torch, dtype))[None, None]
        attention = [f"{PREFIX}h.{layer}.attn" for layer in range(3)]
        masks = {f"{name}.bias": mask.clone() for name in attention}
        return tensors | masks | {f"{name}.masked_bias": torch.tensor(-1e4) for name in attention}

    return change


def without_prefix_in_part(tensors):
    return {n.removeprefix(PREFIX) if "ln_" in n else n: t for n, t in tensors.items()}


def with_head_instead_of_embedding(tensors):
    """Rename like safetensors.torch.save_model, which keeps one of two names of a tensor."""
    return {n.replace(PREFIX + "wte.weight", "lm_head.weight"): t for n, t in tensors.items()}


VARIANTS = {
    "no prefix": with_prefix(""),
    "model.": with_prefix("model."),
    "_orig_mod.transformer.": with_prefix("_orig_mod.transformer."),
    "a prefix in part": without_prefix_in_part,
    "uint8 masks": with_masks("uint8"),
    "float32 masks": with_masks("float32"),
    "masks without a prefix": lambda tensors: with_prefix("")(with_masks("uint8")(tensors)),
    "same head": lambda ts: ts | {"lm_head.weight": ts[PREFIX + "wte.weight"].clone()},
    "a head for both": with_head_instead_of_embedding,
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_weights_in_other_words(variant, original, copied):
    change_tensors(copied / "model.safetensors", VARIANTS[variant])
    np.testing.assert_array_equal(GPT2.from_folder(copied).forward([IDS]), original[1])


def test_matrices_as_nn_linear_has_them_are_refused(default):
    """nanoGPT's; c_attn is never square, so it shows the layout."""

    def transposed(tensors):
        return {n: t.T if ".c_" in n and n.endswith("weight") else t for n, t in tensors.items()}

    change_tensors(default / "model.safetensors", transposed)
    with pytest.raises(CheckpointError, match=r"c_attn\.weight has shape"):
        GPT2.from_folder(default)


@pytest.mark.parametrize("tied", [True, False])
def test_another_head_is_used_whatever_the_config_says(tied, copied, original):
    """Like transformers: the logits are x @ head.T in both cases."""

    def with_other_head(tensors):
        return tensors | {"lm_head.weight": 2 * tensors[PREFIX + "wte.weight"].flip(0)}

    change_tensors(copied / "model.safetensors", with_other_head)
    change_config(copied, tie_word_embeddings=tied)
    ours, theirs = both_logits(copied)
    np.testing.assert_allclose(ours, 2 * original[1][:, ::-1], rtol=0, atol=1e-5)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def shard_of(folder, name):
    """Return the path of a tensor's shard."""
    return folder / read_json(folder / INDEX)["weight_map"][name]


def test_a_shard_that_the_index_does_not_name_is_passed_over(sharded):
    before = GPT2.from_folder(sharded).forward([IDS])
    stray = {"transformer.ln_f.bias": torch.full((64,), 9.0)}
    for name in ("model-00000-of-00009.safetensors", "model-00099-of-00099.safetensors"):
        safetensors.save_file(stray, sharded / name, {"format": "pt"})
    ours, theirs = both_logits(sharded)
    np.testing.assert_array_equal(ours, before)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def test_a_single_file_counts_before_an_index(sharded, original):
    """Like transformers; the single file and the shards have different weights."""

    def changed(tensors):
        name = "transformer.ln_f.bias"
        return tensors | {name: tensors[name] + 1}

    before = GPT2.from_folder(sharded).forward([IDS])
    shutil.copy(original[0] / "config.json", sharded)
    shutil.copy(original[0] / "model.safetensors", sharded)
    change_tensors(sharded / "model.safetensors", changed)
    ours, theirs = both_logits(sharded)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    assert np.abs(ours - before).max() > 0.1


def test_a_missing_shard_is_named(sharded):
    shard = shard_of(sharded, "transformer.ln_f.bias")
    shard.unlink()
    with pytest.raises(CheckpointError, match=rf"{shard.name} is missing"):
        GPT2.from_folder(sharded)
