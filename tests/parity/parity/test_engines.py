"""The parity kit on transformers in three dtypes, and on the forward pass in 60 lines."""

import importlib.util

import pytest
from helpers.paths import CHECKOUT
from helpers.peers import torch, transformers

import gpt2np
from gpt2np.parity import check, record

PROMPTS = {"short": "Once upon a time there was a", "token": "The", "unicode": "Ü 你 🙂"}


@pytest.fixture(scope="module")
def exact():
    return gpt2np.load("bundled", exact=True)


@pytest.fixture(scope="module")
def reference(exact):
    return record(exact, PROMPTS, points=["logits"])


@pytest.mark.parametrize(
    ("dtype", "attention"),
    [("float32", "eager"), ("bfloat16", "eager"), ("float16", "sdpa")],
)
def test_transformers_is_right(reference, exact, dtype, attention):
    model = transformers.GPT2LMHeadModel.from_pretrained(
        CHECKOUT / "weights", dtype=getattr(torch, dtype), attn_implementation=attention
    ).eval()
    tested = {}
    prompts = {"short": reference.ids["short"]} if dtype == "bfloat16" else reference.ids
    for prompt, ids in prompts.items():
        with torch.no_grad():
            output = model(
                torch.tensor([ids]),
                output_hidden_states=True,
                output_attentions=attention == "eager",
            )
        tested[f"{prompt}/logits"] = output.logits.float().numpy()
        tested[f"{prompt}/hidden_states"] = [x.float().numpy() for x in output.hidden_states]
        if attention == "eager":
            tested[f"{prompt}/attentions"] = [x.float().numpy() for x in output.attentions]
    report = check(reference, tested, exact, dtype)
    assert report.is_rounding, report


def test_the_forward_pass_in_60_lines(reference, exact, monkeypatch):
    path = CHECKOUT / "examples" / "forward_in_60_lines.py"
    spec = importlib.util.spec_from_file_location("forward", path)
    forward = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(forward)

    def run():
        return {f"{name}/logits": forward.forward(ids) for name, ids in reference.ids.items()}

    assert check(reference, run(), exact).is_rounding
    text = path.read_text(encoding="utf-8").replace("/ 8, -math.inf", "/ 64, -math.inf")
    code = compile(text.partition("if __name__")[0], str(path), "exec")
    exec(code, forward.__dict__)
    report = check(reference, {"short/logits": forward.forward(reference.ids["short"])}, exact)
    assert report.mistake == "the scale is 1 / D"
