"""Checkpoints of GPT-2's real sizes: parity, and memory use of loading.

The slow tests (medium, large, XL) write up to 6 GB and need up to 16 GB of memory.
"""

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.logits import compare_logits
from helpers.peers import torch
from helpers.references import reference_logits, to_float64

from gpt2np import GPT2

MEDIUM = {"n_layer": 24, "n_embd": 1024, "n_head": 16}
LARGE = {"n_layer": 36, "n_embd": 1280, "n_head": 20}
XL = {"n_layer": 48, "n_embd": 1600, "n_head": 25}
HALF = {"n_layer": 6, "vocab_size": 25_000}  # half of GPT-2 small
PARAMETERS = 62_515_200


def uniform_model(seed=0, **shape):
    """Build a GPT-2 of transformers with uniform weights, which are fast to draw."""
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config(**shape, attn_implementation="eager"))
    model = model.to_empty(device="cpu").eval()
    model.tie_weights()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.uniform_(-0.05, 0.05, generator=generator)
            if "ln_" in name and name.endswith("weight"):
                parameter += 1
    return model


@pytest.fixture
def folder(tmp_path):
    """An empty folder, emptied after the test, because pytest keeps temporary folders."""
    yield tmp_path
    for path in tmp_path.iterdir():
        path.unlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("medium", MEDIUM, 354_823_168),
        ("large", LARGE, 774_030_080),
        ("XL", XL, 1_557_611_200),
    ],
    ids=["medium", "large", "XL"],
)
def test_larger_sizes(name, shape, parameters, folder):
    """Compare 24 tokens; memory never holds two float64 models."""
    reference = uniform_model(**shape)
    assert reference.num_parameters() == parameters
    reference.save_pretrained(folder, max_shard_size="2GB")
    ids = np.random.default_rng(0).integers(0, 50257, 24)
    theirs = reference_logits(reference, ids)
    exact = reference_logits(to_float64(reference), ids)
    del reference
    gc.collect()
    model = GPT2.from_folder(folder)
    assert model.weights.parameters == parameters
    compare_logits(name, [model.forward([ids])], [theirs], [exact])


CHILD = """
import sys
from pathlib import Path
from gpt2np import GPT2

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

before = peak()
model = GPT2.from_folder(sys.argv[1])
for _ in range(3):  # from the mapped file, then from packed weights
    model.forward([[1, 2, 3]])
print(peak() - before, model.weights.nbytes)
"""


@pytest.fixture(scope="module")
def small():
    return uniform_model(**HALF)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(("dtype", "head"), [("float32", False), ("bfloat16", True)])
def test_loading_takes_no_second_copy(dtype, head, small, folder):
    """Runs in a separate process, whose peak memory includes mapped pages."""
    tensors = {
        name: tensor.to(getattr(torch, dtype)) for name, tensor in small.state_dict().items()
    }
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
    if head:
        tensors["lm_head.weight"] = tensors["lm_head.weight"].clone()  # else it is not stored
    small.save_pretrained(folder, state_dict=tensors, max_shard_size="100MB")
    files = list(folder.glob("*.safetensors"))
    stored = sum(path.stat().st_size for path in files)
    bytes_each = torch.finfo(getattr(torch, dtype)).bits // 8
    heads = 25_000 * 768 if head else 0
    assert len(files) > 1 and stored == pytest.approx((PARAMETERS + heads) * bytes_each, rel=0.0005)
    # Converted tensors are released one by one; the embedding is a third of the model.
    limit = (1.1 if dtype == "float32" else 1.35) * 4 * PARAMETERS
    arguments = [sys.executable, "-c", CHILD, str(folder)]
    for _ in range(2):  # the kernel may map more of a file than was read
        child = subprocess.run(arguments, capture_output=True, text=True, check=True)
        growth, weights = map(int, child.stdout.split())
        if growth <= limit:
            break
    assert 4 * PARAMETERS <= weights < 4.01 * PARAMETERS
    assert growth <= limit
