"""The parity kit on transformers in three dtypes, and on the forward pass in 60 lines."""

import importlib.util
import math

import numpy as np
import pytest
import torch
from helpers.paths import CHECKOUT
from transformers import GPT2LMHeadModel

import gpt2np
from gpt2np.parity import check, record


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


PROMPTS = {"short": "Once upon a time there was a", "token": "The", "unicode": "Zürich – 你好 🙂"}


@pytest.fixture(scope="module")
def exact():
    return gpt2np.load("bundled", exact=True)


@pytest.fixture(scope="module")
def golden(exact):
    return record(exact, PROMPTS, points=["logits"], max_new_tokens=4)


@pytest.mark.parametrize(
    ("dtype", "attention"),
    [
        ("float32", "eager"),
        ("float32", "sdpa"),
        ("bfloat16", "eager"),
        slow("bfloat16", "sdpa"),
        slow("float16", "eager"),
        ("float16", "sdpa"),
    ],
)
def test_transformers_is_right(golden, exact, dtype, attention):
    model = GPT2LMHeadModel.from_pretrained(
        CHECKOUT / "weights", dtype=getattr(torch, dtype), attn_implementation=attention
    ).eval()
    candidate = {}
    for prompt, ids in golden.ids.items():
        with torch.no_grad():
            output = model(
                torch.tensor([ids]),
                output_hidden_states=True,
                output_attentions=attention == "eager",
            )
        candidate[f"{prompt}/logits"] = output.logits.float().numpy()
        candidate[f"{prompt}/hidden_states"] = [x.float().numpy() for x in output.hidden_states]
        if attention == "eager":
            candidate[f"{prompt}/attentions"] = [x.float().numpy() for x in output.attentions]
    report = check(golden, candidate, exact, dtype)
    assert report.is_rounding, report


def test_the_forward_pass_in_60_lines(golden, exact, monkeypatch):
    path = CHECKOUT / "examples" / "forward_in_60_lines.py"
    spec = importlib.util.spec_from_file_location("forward", path)
    forward = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(forward)

    def run():
        return {f"{name}/logits": forward.forward(ids) for name, ids in golden.ids.items()}

    assert check(golden, run(), exact).is_rounding
    text = path.read_text(encoding="utf-8").replace("/ 8, -math.inf", "/ 64, -math.inf")
    code = compile(text.partition("if __name__")[0], str(path), "exec")
    exec(code, forward.__dict__)
    report = check(golden, run(), exact)
    assert report.mistake == "the scale is 1 / D"


def test_half_precision_is_recognized_by_its_numbers(golden, exact):

    def hook(name, array):
        return array.astype(np.float16).astype(np.float32) if name.endswith("mlp.act") else array

    ids = golden.ids["short"]
    arrays = gpt2np.trace(gpt2np.load("bundled"), ids, interventions=hook).arrays
    given = {f"short/{name}": arrays[name] for name in ("blocks.0.mlp.pre", "blocks.0.mlp.act")}
    report = check(golden, given, exact, "float32")
    assert report.first.point == "blocks.0.mlp.act" and report.mistake is None
    assert str(report).endswith("no known mistake explains it (all numbers are float16)")
    logits = {"short/logits": arrays["logits"]}
    report = check(golden, logits, exact, "float32")
    assert not report.is_rounding and report.mistake is None
    assert check(golden, logits, exact, "float16").is_rounding


# Variations that are not on the list of mistakes, and the point at which each shows.
UNLISTED = {
    "embed": lambda x: x * np.float32(math.pi / 3),
    "blocks.0.attn.pattern": lambda x: x**1.01,
    "blocks.2.mlp.act": lambda x: np.maximum(x, -0.1),
    "blocks.4.resid": lambda x: np.clip(x, -1, 1),
    "logits": lambda x: 30 * np.tanh(x / 30),
    "blocks.1.attn.q": lambda x: x[:, ::-1],
    "blocks.3.attn.v": lambda x: np.where(np.arange(x.shape[-1]) == 5, 0, x),
    "blocks.2.ln_2": lambda x: x * 1.001,
    "blocks.5.mlp.out": lambda x: np.roll(x, 1, -1),
    "ln_f": lambda x: np.abs(x),
}


@pytest.mark.parametrize("point", [*list(UNLISTED)[:5], *map(slow, list(UNLISTED)[5:])])
def test_mistakes_that_are_not_on_the_list(golden, exact, point):
    engine = gpt2np.load("bundled")

    def hook(name, array):
        return UNLISTED[point](array).astype(np.float32) if name == point else array

    ids = golden.ids["short"]
    arrays = gpt2np.trace(engine, ids, interventions=hook).arrays
    report = check(golden, {f"short/{name}": array for name, array in arrays.items()}, exact)
    assert report.first is not None and report.first.point == point
    assert f"a bug, first at {point}" in str(report)
