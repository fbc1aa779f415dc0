"""Greedy continuations against transformers.generate, id by id."""

import copy

import numpy as np
import torch
from conftest import reference_logits
from transformers import GPT2LMHeadModel

from gpt2np import LanguageModel

NEAR_TIE = 1e-4
NEW_TOKENS = 200


def test_twenty_prompts(bundled, data, show):
    reference = GPT2LMHeadModel.from_pretrained(
        bundled, dtype="float32", attn_implementation="eager"
    ).eval()
    lm = LanguageModel.load(bundled)
    text = (data / "stories" / "valid.txt").read_text(encoding="utf-8")
    documents = [part.strip() for part in text.split("<|endoftext|>")][10:30]
    equal = near_ties = 0
    for number, document in enumerate(documents):
        prompt = lm.tokenizer.encode(document)[: 5 + 10 * number]
        ours = lm.generate(prompt, temperature=0, max_new_tokens=NEW_TOKENS).ids
        with torch.no_grad():
            theirs = reference.generate(
                torch.tensor([prompt]), do_sample=False, max_new_tokens=NEW_TOKENS
            )
        theirs = theirs[0, len(prompt) :].tolist()
        if ours == theirs:
            equal += 1
            continue
        place = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
        exact = copy.deepcopy(reference).double()
        second, first = np.sort(reference_logits(exact, prompt + ours[:place])[-1])[-2:]
        show("greedy", f"prompt {number}: differs at {place}, gap {first - second:.1e} there")
        assert first - second < NEAR_TIE
        near_ties += 1
    line = (
        f"{equal} of {len(documents)} prompts by {NEW_TOKENS} tokens equal, {near_ties} near-ties"
    )
    show("greedy continuations against transformers.generate", line)
    assert equal + near_ties == 20
