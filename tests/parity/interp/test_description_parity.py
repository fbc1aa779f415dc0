"""The page's numbers against transformers: 110 at random places, in each of three models."""

import json

import numpy as np
import pytest
from helpers.explain_pages import decoded
from helpers.paths import CHECKOUT
from helpers.peers import torch
from helpers.references import load_reference, save_reference, to_float64
from helpers.transformers_pass import transformers_arrays

from gpt2np import GPT2, LanguageModel
from gpt2np.interp.description import describe_pass, describe_token, record_pass

IDS = [400, 17, 1023, 5, 5, 2048, 77, 301, 12, 999, 3]
SHAPES = {
    "bundled": {},
    "tiny": {"n_layer": 3, "n_head": 2, "n_embd": 8, "n_positions": 32},
    "width of GPT-2 small": {"n_layer": 1, "n_head": 12, "n_embd": 768, "n_positions": 16},
}
N_CHECKS = 10  # of each array


def numbers_of_transformers(reference, ids, neurons, listed, next_ids):
    """Return what a description has, in float64: (L, R, …) of the blocks, and other shapes."""
    arrays, layers = transformers_arrays(reference, ids), range(reference.config.n_layer)
    last = f"blocks.{layers[-1]}"
    arrays[f"{last}.resid"] = arrays[f"{last}.resid_mid"] + arrays[f"{last}.mlp.out"]
    wte, wpe = (getattr(reference.transformer, name).weight.detach() for name in ("wte", "wpe"))

    def stack(point):
        return np.stack([arrays[f"blocks.{i}.{point}"] for i in layers])

    residuals = np.stack([arrays["embed"], *stack("resid")])
    with torch.no_grad():
        lens = reference.lm_head(reference.transformer.ln_f(torch.tensor(residuals[:, -1])))
        logprobs = torch.log_softmax(torch.tensor(arrays["logits"][-1]), -1).numpy()
        cosines = torch.cosine_similarity(wte[ids[0]], wte).numpy()
    return {
        "wte": wte[ids].numpy(),
        "wpe": wpe[: len(ids)].numpy(),
        "attention": stack("attn.out"),
        "mlp": stack("mlp.out"),
        "resid": residuals[1:],
        "pattern": stack("attn.pattern"),
        "activations": np.take_along_axis(stack("mlp.act"), neurons, -1),
        "lens": np.take_along_axis(torch.softmax(lens, -1).numpy(), listed, -1),
        "logprobs": logprobs[next_ids],
        "neighbors": np.argsort(-cosines)[1:13],
        "cosines": -np.sort(-cosines)[1:13],
    }


@pytest.mark.parametrize("kind", SHAPES)
def test_numbers_of_a_pass_and_of_a_token(lm, tmp_path, kind):
    folder = tmp_path if SHAPES[kind] else CHECKOUT / "weights"
    if SHAPES[kind]:
        save_reference(folder, vocab_size=4096, **SHAPES[kind])
    lm = LanguageModel(GPT2.from_folder(folder), lm.tokenizer)
    described = json.loads(json.dumps(describe_pass(lm, record_pass(lm, IDS))))
    nearest = json.loads(json.dumps(describe_token(lm, IDS[0])))["nearest"]
    lens, likely = described["lens"], described["next"]

    ours = {name: decoded(value) for name, value in described["lines"].items() if name != "first"}
    neurons, listed = ours.pop("neurons"), np.array([place["ids"] for place in lens])
    ours["lens"] = np.array([place["probabilities"] for place in lens])
    ours["logprobs"] = np.array([each["logprob"] for each in likely])
    ours["neighbors"] = np.array([each["id"] for each in nearest])
    ours["cosines"] = np.array([each["cosine"] for each in nearest])
    reference = to_float64(load_reference(folder))
    next_ids = [each["id"] for each in likely]
    theirs = numbers_of_transformers(reference, IDS, neurons, listed, next_ids)

    assert ours.keys() == theirs.keys() and len(ours) * N_CHECKS >= 100
    rng = np.random.default_rng(0)
    for name, array in ours.items():
        assert array.shape == theirs[name].shape, name
        places = rng.integers(array.size, size=N_CHECKS)
        found, expected = array.ravel()[places], theirs[name].ravel()[places]
        rtol = 1e-3 if array.dtype == np.float16 else 1e-4
        atol = rtol * np.abs(theirs[name]).max() / 10
        np.testing.assert_allclose(found, expected, rtol, atol, err_msg=name)
