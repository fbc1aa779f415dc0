"""The bundled model is what its card says."""

import math
import re

import numpy as np
import pytest
from safetensors.numpy import load_file

from gpt2np import LanguageModel

MOST_BITS = 1.25  # per character


def test_size(bundled):
    assert sum(file.stat().st_size for file in bundled.iterdir()) < 20_000_000
    tensors = load_file(bundled / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float16)}
    parameters = sum(tensor.size for tensor in tensors.values())
    assert 5_500_000 < parameters < 10_000_000
    assert f"{parameters / 1e6:.1f} million parameters" in card(bundled)


@pytest.mark.parametrize(
    "part", [slice(107, 108), pytest.param(slice(None), marks=pytest.mark.slow)], ids=str
)
def test_held_out_bits_per_character(bundled, data, part):
    """Of a story of usual difficulty about what the card says.

    With `-m slow`, of all stories exactly that.
    """
    texts = (data / "stories" / "valid.txt").read_text(encoding="utf-8").split("<|endoftext|>")
    stories = [story for text in texts if (story := text.strip("\n"))][part]
    bits = model_bits(LanguageModel.load(bundled), stories) / sum(map(len, stories))
    assert bits < MOST_BITS
    (told,) = re.findall(r"\*\*(1\.\d{3})\*\*", card(bundled))
    assert f"{bits:.3f}" == told if part == slice(None) else abs(bits - float(told)) < 0.05


def model_bits(lm, stories):
    """Bits of the stories, each between end-of-text tokens, in windows with a stride of half."""
    context, end, nats = lm.model.config.n_positions, lm.tokenizer.eos_token_id, 0.0
    for story in stories:
        ids = np.array([end, *lm.tokenizer.encode(story), end])
        done = 1
        while done < len(ids):
            stop = min(len(ids), context + 1 if done == 1 else done + context // 2)
            start = max(0, stop - 1 - context)
            rows = np.arange(done - 1 - start, stop - 1 - start)
            logits = lm.model.forward([ids[start : stop - 1]], logits_indices=rows)
            logits = logits.astype(np.float64)
            target = np.take_along_axis(logits, ids[done:stop, None], -1)[:, 0]
            nats += (np.logaddexp.reduce(logits, axis=-1) - target).sum()
            done = stop
    return nats / math.log(2)


@pytest.mark.parametrize("count", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_the_samples_are_not_selected(bundled, count):
    samples = re.findall(r"^\*\*(\d+)\*\*\n\n((?:>.*\n)+)", card(bundled), re.MULTILINE)
    assert [int(number) for number, _ in samples] == list(range(1, 11))
    lm = LanguageModel.load(bundled)
    for number, sample in samples[:count]:
        text = lm.generate("Once upon a time", seed=int(number), max_new_tokens=120).text
        shown = re.sub(r"^>", "", sample, flags=re.MULTILINE).split()
        assert shown == f"Once upon a time{text}".split()


def card(bundled):
    return (bundled / "README.md").read_text(encoding="utf-8")
