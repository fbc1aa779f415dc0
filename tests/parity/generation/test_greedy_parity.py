"""Greedy and healed texts against transformers."""

import copy
import random

import numpy as np
import pytest
from helpers.peers import torch
from helpers.references import load_reference, reference_logits

from gpt2np import LanguageModel
from gpt2np.generation.token_healing import heal

NEAR_TIE = 1e-4


def continued(reference, prompts, new_tokens):
    """transformers' continuations of all prompts, as one batch with left padding."""
    longest, end = max(map(len, prompts)), reference.generation_config.eos_token_id
    there = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    ids = torch.tensor([[end] * (longest - len(p)) + p for p in prompts])
    options = {"do_sample": False, "max_new_tokens": new_tokens, "pad_token_id": end}
    with torch.no_grad():
        rows = reference.generate(ids, attention_mask=there, **options)[:, longest:].tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in rows]


@pytest.mark.parametrize(
    ("count", "new_tokens"), [(2, 20), pytest.param(20, 200, marks=pytest.mark.slow)]
)
def test_prompts_of_all_lengths(bundled, data, count, new_tokens):
    reference, lm = load_reference(bundled), LanguageModel.load(bundled)
    text = (data / "stories" / "valid.txt").read_text(encoding="utf-8")
    documents = [part.strip() for part in text.split("<|endoftext|>")][10:30]
    documents = documents[:: 20 // count]
    cuts = [lm.tokenizer.encode(text)[: 5 + 200 // count * n] for n, text in enumerate(documents)]
    for prompt, theirs in zip(cuts, continued(reference, cuts, new_tokens), strict=True):
        ours = lm.generate(prompt, temperature=0, max_new_tokens=new_tokens).ids
        if ours != theirs:
            place = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
            exact = copy.deepcopy(reference).double()
            second, first = np.sort(reference_logits(exact, prompt + ours[:place])[-1])[-2:]
            assert first - second < NEAR_TIE


def test_the_first_token_is_the_likeliest_of_those_of_transformers(lm, bundled):
    """Where one token is dropped; transformers adds a bonus for the dropped token."""
    from transformers import AutoTokenizer
    from transformers.generation.utils import ExtensionsTrie

    model, tokenizer = load_reference(bundled), AutoTokenizer.from_pretrained(bundled)
    trie = ExtensionsTrie(tokenizer.get_vocab())
    options = {"max_new_tokens": 100, "seed": 1, "ignore_eos": True}
    text = lm.generate("Once upon a time", **options).text
    rng, compared, replaced = random.Random(1), 0, 0
    for _ in range(25):
        start = text.index(" ", rng.randrange(len(text) - 120)) + 1
        prompt = text[start : start + rng.randrange(20, 80)].strip()
        ids = tokenizer(prompt).input_ids
        rest, healing = heal(lm.tokenizer, ids, None, lm.model.config.vocab_size)
        if len(rest) != len(ids) - 1:
            continue
        candidates = trie.extensions(prefix=tokenizer.convert_ids_to_tokens(ids[-1]))
        candidate_ids = sorted(tokenizer.convert_tokens_to_ids(candidates))
        assert healing.allowed().nonzero()[0].tolist() == candidate_ids
        logits = model(torch.tensor([rest])).logits[0, -1]
        ours = lm.generate(prompt, token_healing=True, temperature=0, max_new_tokens=1)
        assert ours.ids == [max(candidate_ids, key=lambda i: logits[i])]
        compared, replaced = compared + 1, replaced + (ours.ids != ids[-1:])
    assert compared > 7 and replaced > 2
