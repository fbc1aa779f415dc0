"""Public calls under the caller's np.seterr(all="raise") and the warnings filter "error"."""

import asyncio
import warnings
from functools import partial

import numpy as np
import pytest

import gpt2np
from gpt2np import LanguageModel
from gpt2np.checkpoint.load import read_checkpoint
from gpt2np.checkpoint.safetensors_file import read_tensors
from gpt2np.errors import CheckpointError
from gpt2np.evaluation.perplexity import perplexity
from gpt2np.interp import attribution, lens_table
from gpt2np.model import GPT2
from gpt2np.model.gpt2 import gpt2
from gpt2np.model.plain import PlainContext, plain_weights
from gpt2np.view.explain import explain

TEXTS = ("0" * 100, "Once upon a time there was a little fox", "🦊🦊🦊 é\u00a0")
SHORT = {"seed": 1, "max_new_tokens": 8}


def ids(lm, text):
    return lm.tokenizer.encode(text)


ENTRIES = {
    "greedy": lambda lm, text: lm.generate(text, temperature=0, max_new_tokens=8),
    "log probabilities": lambda lm, text: lm.generate(text, logprobs=3, prompt_logprobs=3, **SHORT),
    "temperature": lambda lm, text: lm.generate(text, temperature=1e-30, **SHORT),
    "top_p": lambda lm, text: lm.generate(text, top_p=0.9, top_k=0, **SHORT),
    "min_p": lambda lm, text: lm.generate(text, min_p=0.1, top_k=0, **SHORT),
    "typical_p": lambda lm, text: lm.generate(text, typical_p=0.5, top_k=0, **SHORT),
    "penalties": lambda lm, text: lm.generate(
        text, repetition_penalty=1.3, frequency_penalty=2, logit_bias={5: 100}, **SHORT
    ),
    "choices": lambda lm, text: lm.generate(text, choices=[" yes", " no"], typical_p=0.9, seed=1),
    "beam search": lambda lm, text: lm.generate(text, num_beams=2, max_new_tokens=4),
    "batch": lambda lm, text: lm.generate_batch([text, "x"], **SHORT),
    "asyncio": lambda lm, text: asyncio.run(lm.agenerate(text, **SHORT)),
    "prefix": lambda lm, text: lm.generate(" x", prefix=lm.prefix(text), **SHORT),
    "score": lambda lm, text: [(s.total, s.perplexity, s.by_word()) for s in lm.score([text, "x"])],
    "perplexity": lambda lm, text: perplexity(lm, [text]),
    "forward": lambda lm, text: lm.model.forward([ids(lm, text)]),
    "unembed": lambda lm, text: lm.model.unembed(np.ones((2, lm.model.config.n_embd), np.float32)),
    "plain pass": lambda lm, text: gpt2(
        PlainContext(ids(lm, text), lm.model.config), plain_weights(lm.model)
    ),
    "trace": lambda lm, text: attribution(lm, gpt2np.trace(lm, text), [5]),
    "lens": lambda lm, text: lens_table(lm, gpt2np.trace(lm, text)),
    "explain": lambda lm, text: explain(lm, text[:20]),
}


@pytest.fixture
def strict():
    """NumPy's error state of a caller who wants an exception for everything."""
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("name", ENTRIES)
def test_results_do_not_depend_on_the_error_state(lm, name, strict):
    for text in TEXTS:
        ENTRIES[name](lm, text)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38])
@pytest.mark.parametrize("call", ["generate", "score", "prefix"])
def test_a_damaged_model_is_a_checkpoint_error(lm, value, call, strict):
    weights = dict(lm.model.weights)
    weights["ln_f.weight"] = np.full_like(weights["ln_f.weight"], value)
    damaged = LanguageModel(GPT2(lm.model.config, weights), lm.tokenizer)
    calls = {"generate": partial(damaged.generate, "A", **SHORT)}
    calls |= {"score": partial(damaged.score, TEXTS[1])}
    calls |= {"prefix": lambda: damaged.generate("A", prefix=damaged.prefix("The"), **SHORT)}
    with pytest.raises(CheckpointError, match="logits are not numbers"):
        calls[call]()


def test_tiny_weights_are_rounded_to_zero(lm, tmp_path, strict):
    weights = {name: array.astype(np.float64) for name, array in lm.model.weights.items()}
    weights["ln_f.bias"] = np.full_like(weights["ln_f.bias"], 1e-60)
    GPT2(lm.model.config, weights).save(tmp_path / "model")
    loaded = read_tensors(read_checkpoint(tmp_path / "model").model_tensors(), np.float32)
    assert not np.asarray(loaded["ln_f.bias"]).any()
