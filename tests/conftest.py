"""What the tests share: the data, reference models, tables shown at the end of a run."""

import os
from collections import defaultdict
from pathlib import Path

# Threads without work are to sleep: by default OpenBLAS's spin in the way of torch's, and those in
# the way of all else. Both libraries read it once, when they are imported.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

CHECKOUT = Path(__file__).parent.parent
DATA = Path(os.environ.get("GPT2NP_TEST_DATA", CHECKOUT.parent / "shared" / "data"))

# The same examples in each run, however slow the machine: what fails fails again. For others:
# `pytest --hypothesis-profile default`.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")

_tables: dict[str, list[str]] = defaultdict(list)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of GPT-2's vocabulary, multilingual text and stories."""
    if not DATA.is_dir():
        pytest.skip(f"no test data at {DATA}; set GPT2NP_TEST_DATA to the folder that holds it")
    return DATA


@pytest.fixture(scope="session")
def gpt2_vocabulary(data: Path) -> Path:
    return data / "gpt2-tokenizer"


@pytest.fixture(scope="session")
def bundled() -> Path:
    return CHECKOUT / "weights"


@pytest.fixture
def show(request):
    """show(title, line): a line of a table that is printed when all tests are done."""
    return lambda title, line: _tables[title].append(line)


def pytest_terminal_summary(terminalreporter):
    for title, lines in _tables.items():
        terminalreporter.section(title)
        for line in lines:
            terminalreporter.write_line(line)


def any_characters(rng, length: int) -> str:
    """A text of about `length` characters over all of Unicode, also of what is no character."""
    codes = (rng.randrange(0x110000) for _ in range(length))
    return "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)


def save_reference(
    folder: Path,
    *,
    spread: float = 0.05,
    seed: int = 0,
    dtype: str = "float32",
    shards: int = 1,
    base: bool = False,
    same_head: bool = False,
    **shape,
):
    """A random transformers GPT-2 in `folder`, written by save_pretrained; returns the model.

    Every parameter is drawn anew, biases and layer norms too, so that none hides behind a 0 or a 1.
    It is stored in `dtype`, in about so many `shards`, and as a GPT2LMHeadModel or, `base`, as a
    GPT2Model, whose names have no prefix. `same_head` makes an untied head equal to the embedding.
    """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = {"bos_token_id": 0, "eos_token_id": 0} | shape
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(GPT2Config(**shape, attn_implementation="eager")).eval()
    model.to(getattr(torch, dtype))  # before the drawing, so that float64 has all its digits
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += spread * torch.randn_like(parameter)
        if same_head:
            model.lm_head.weight.copy_(model.transformer.wte.weight)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    stored = model.transformer if base else model
    stored.save_pretrained(folder, max_shard_size=size // shards + 1)
    return model


def load_reference(folder: Path, dtype: str = "float32"):
    """transformers' GPT-2 of the checkpoint in `folder`, with eager attention."""
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return model.eval()


def to_float64(model):
    """The model itself, from now on in float64: what float32 results are measured against."""
    for block in model.transformer.h:
        block.attn.reorder_and_upcast_attn = False  # it goes through float32
    return model.double()


def reference_logits(model, ids) -> np.ndarray:
    """transformers' logits (T, V) for one sequence."""
    import torch

    with torch.no_grad():
        return model(torch.tensor(np.asarray(ids))[None]).logits[0].numpy()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A folder with a tiny random model (V 211, context 48), and transformers' model of it."""
    folder = tmp_path_factory.mktemp("tiny")
    shape = {"vocab_size": 211, "n_positions": 48, "n_embd": 24, "n_layer": 3, "n_head": 3}
    return folder, save_reference(folder, spread=0.2, **shape)
