"""Token healing against the candidates of transformers and its logits."""

import random

import torch
from helpers.references import load_reference

from gpt2np.generation.token_healing import heal


def test_the_first_token_is_the_likeliest_of_those_of_transformers(lm, bundled, show):
    """Where one token is dropped; transformers adds a bonus for the dropped token."""
    from transformers import AutoTokenizer
    from transformers.generation.utils import ExtensionsTrie

    model, tokenizer = load_reference(bundled), AutoTokenizer.from_pretrained(bundled)
    trie = ExtensionsTrie(tokenizer.get_vocab())
    options = {"max_new_tokens": 400, "seed": 1, "ignore_eos": True}
    text = lm.generate("Once upon a time", **options).text
    rng, compared, replaced = random.Random(1), 0, 0
    for _ in range(100):
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
    assert compared > 30 and replaced > 10
    show("token healing", f"{compared} prompts as in transformers, {replaced} with another token")
