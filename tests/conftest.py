"""What the tests share: the data, reference models, tables shown at the end of a run."""

import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

CHECKOUT = Path(__file__).parent.parent
DATA = Path(os.environ.get("GPT2NP_TEST_DATA", CHECKOUT.parent / "shared" / "data"))

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


def save_reference(folder: Path, *, spread: float = 0.05, seed: int = 0, **shape):
    """A random transformers GPT-2 in `folder`, written by save_pretrained; returns the model.

    Every parameter is drawn anew, biases and layer norms too, so that none hides behind a 0 or a 1.
    """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = {"bos_token_id": 0, "eos_token_id": 0} | shape
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(GPT2Config(**shape, attn_implementation="eager")).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += spread * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return model


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
