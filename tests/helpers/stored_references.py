"""What the peers answer to a few small inputs, stored in tests/references for the unit tests.

`python tests/helpers/stored_references.py` asks transformers and tokenizers again and writes the
folder. tests/parity/test_stored_references.py checks that their answers are still the stored ones.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np

TESTS = Path(__file__).parents[1]
FOLDER = TESTS / "references"
TINY = FOLDER / "tiny"  # a random model, as transformers writes it
BUNDLED = TESTS.parent / "weights"

TEXTS = [
    *["", " ", "\n", "a", "GPT2 was created by OpenAI", "It's we'll I'VE they'd 'tis", "don’t"],
    *["  two  spaces ", "\t\ttabs\t", "line\r\n\r\n  end ", "x" * 40, "1234567 3.14 ½ ٣٤"],
    *["!?…—“”", "naïve café Ünïcödé", "漢字とかな 한국어", "Привет, мир", "नमस्ते दुनिया", "مرحبا"],
    *["🦊👩\u200d👩\u200d👧 🇩🇪", "e\u0301 \u00a0\u2003\u200b", "\x00\x01\x7f", "a<|endoftext|>b"],
    "def f(x):\n    return x**2  # ok",
]
OPTIONS = [
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"typical_p": 0.7},
    {"temperature": 0.6, "top_k": 9, "top_p": 0.9, "min_p": 0.02},
    {"repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 2},
    {"bad_words_ids": [[5], [3, 4], [1, 2, 3]]},
    {"logit_bias": {3: 4.0, 7: -2.5}},
    {"repetition_penalty": 0.8, "no_repeat_ngram_size": 3, "bad_words_ids": [[9]]},
]
SEARCHES = [
    {},
    {"num_beams": 3},
    {"num_beams": 4, "length_penalty": -1.0, "early_stopping": True},
    {"num_beams": 2, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
]
HISTORY = [1, 2, 3, 1, 2, 4, 3, 6, 1, 2]
PROMPT = [17, 3, 200, 41, 3]


def random_logits() -> np.ndarray:
    """Return one row per entry of `OPTIONS`."""
    return np.random.default_rng(7).normal(0, 3, (len(OPTIONS), 50)).astype(np.float32)


def stored_arrays() -> dict[str, np.ndarray]:
    """Return activations of `TINY` on `PROMPT` by hook point, and processed `random_logits`."""
    with np.load(FOLDER / "arrays.npz") as arrays:
        return dict(arrays)


def stored_ids() -> dict[str, list]:
    """Return the token ids of `TEXTS`, and the ids that `SEARCHES` add to `PROMPT`."""
    return json.loads((FOLDER / "ids.json").read_text(encoding="utf-8"))


def ask_for_arrays() -> dict[str, np.ndarray]:
    """Let transformers compute what `stored_arrays` returns."""
    from helpers.references import load_reference
    from helpers.transformers_pass import transformers_arrays

    processed = [
        _processed(logits, options)
        for logits, options in zip(random_logits(), OPTIONS, strict=True)
    ]
    return transformers_arrays(load_reference(TINY), PROMPT) | {"processed": np.stack(processed)}


def _processed(logits: np.ndarray, options: dict) -> np.ndarray:
    import torch
    import transformers

    classes = {  # in the order in which generate applies them
        "logit_bias": lambda bias: transformers.SequenceBiasLogitsProcessor(
            {(i,): value for i, value in bias.items()}
        ),
        "repetition_penalty": transformers.RepetitionPenaltyLogitsProcessor,
        "no_repeat_ngram_size": transformers.NoRepeatNGramLogitsProcessor,
        "bad_words_ids": transformers.NoBadWordsLogitsProcessor,
        "temperature": transformers.TemperatureLogitsWarper,
        "top_k": transformers.TopKLogitsWarper,
        "top_p": transformers.TopPLogitsWarper,
        "min_p": transformers.MinPLogitsWarper,
        "typical_p": transformers.TypicalLogitsWarper,
    }
    assert options.keys() <= classes.keys(), "add the sampler's class to `classes`"
    scores = torch.tensor(logits)[None]
    for name, make in classes.items():
        if name in options:
            scores = make(options[name])(torch.tensor([HISTORY]), scores)
    return scores[0].numpy()


def ask_for_ids() -> dict[str, list]:
    """Let tokenizers and transformers compute what `stored_ids` returns."""
    import torch
    from tokenizers import ByteLevelBPETokenizer

    from helpers.references import load_reference

    tokenizer = ByteLevelBPETokenizer(str(BUNDLED / "vocab.json"), str(BUNDLED / "merges.txt"))
    model = load_reference(TINY)
    options = {"do_sample": False, "max_new_tokens": 20, "eos_token_id": 0, "pad_token_id": 0}
    found = [model.generate(torch.tensor([PROMPT]), **options | more) for more in SEARCHES]
    return {
        "texts": [tokenizer.encode(text).ids for text in TEXTS],
        "searches": [ids[0, len(PROMPT) :].tolist() for ids in found],
    }


def main() -> None:
    """Write the folder."""
    from helpers.references import save_reference

    shape = {"vocab_size": 211, "n_positions": 48, "n_embd": 24, "n_layer": 3, "n_head": 3}
    save_reference(TINY, spread=0.2, **shape)
    for file in TINY.glob("*.json"):  # the same bytes with any version of transformers
        file.write_text(re.sub(r' *"transformers_version".*\n', "", file.read_text()))
    np.savez_compressed(FOLDER / "arrays.npz", **ask_for_arrays())
    (FOLDER / "ids.json").write_text(json.dumps(ask_for_ids()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))
    main()
