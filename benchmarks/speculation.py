"""Measure tokens per second with and without speculation, in turns in one process.

    python benchmarks/speculation.py [MODEL] [--draft MODEL] [--tokens 100] [--rounds 3]

There are four kinds of text: code and a list, which repeat themselves; a story; and text without
repetition, drawn at a high temperature. There, no draft token is accepted, and only the cost shows.
Without --draft, the draft model is an early exit: the first blocks of the model, at least one.
"""

from __future__ import annotations

import argparse
import statistics

from gpt2np import GPT2, LanguageModel
from gpt2np.generation import Options
from gpt2np.model import GPT2Config

TEXTS = {
    "code": "def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n    return a - b\n\ndef mul",
    "list": "1. apples\n2. pears\n3. plums\n4. apples\n5. pears\n6. plums\n7. apples\n8. pears\n9.",
    "story": "Once upon a time there was a little fox who lived with his mother in the wood.",
    "no repeats": "Xylophone quartz jumbles vex.",
}
SETTINGS: dict[str, Options] = {
    "code": {"temperature": 0.0},
    "list": {"temperature": 0.0},
    "story": {"temperature": 0.8},
    "no repeats": {"temperature": 3.0, "top_k": 0},
}


def early_exit(lm: LanguageModel) -> LanguageModel:
    """Return a draft model: the first sixth of the blocks, at least one, and the unembedding."""
    layers = max(1, lm.model.config.n_layer // 6)
    shape = {
        name: getattr(lm.model.config, name)
        for name in ("vocab_size", "n_positions", "n_embd", "n_head")
    }
    weights = {
        name: array
        for name, array in lm.model.weights.items()
        if not name.startswith("h.") or int(name.split(".")[1]) < layers
    }
    draft = GPT2(GPT2Config(**shape, n_layer=layers), weights)
    return LanguageModel(draft, lm.tokenizer, name=f"first {layers} blocks")


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("model", nargs="?", default="bundled", help="name or folder (default: bundled)")
    add("--draft", help="name or folder of the draft model (default: early exit)")
    add("--tokens", type=int, default=100, help="new tokens per text (default: 100)")
    add("--rounds", type=int, default=3, help="number of rounds (default: 3)")
    add(
        "--only", choices=TEXTS, nargs="+", default=list(TEXTS), help="kinds of text (default: all)"
    )
    args = parser.parse_args()
    lm = LanguageModel.load(args.model)
    lm.use_draft(LanguageModel.load(args.draft) if args.draft else early_exit(lm))
    draft = lm.draft
    print(f"{'':12}{'plain':>9}{'lookup':>9}{'draft':>9}{'lookup ÷':>10}{'draft ÷':>9}  tokens/s")
    for kind in args.only:
        speeds: dict[str, list[float]] = {"plain": [], "lookup": [], "draft": []}
        texts = set()
        ways = list(speeds)
        for turn in range(-1, args.rounds):  # turn -1 is a warm-up
            for way in ways[turn % 3 :] + ways[: turn % 3]:
                lm.draft = draft if way == "draft" else None
                options: Options = {"seed": 1, "max_new_tokens": args.tokens, "ignore_eos": True}
                lookup = way == "lookup"
                given: Options = {**SETTINGS[kind], **options, "prompt_lookup": lookup}
                completion = lm.generate(TEXTS[kind], **given)
                texts.add(completion.text)
                if turn >= 0:
                    speeds[way].append(completion.tokens_per_second)
        assert len(texts) == 1, "speculation changed the text"
        plain, looked_up, drafted = (statistics.median(values) for values in speeds.values())
        ratios = f"{looked_up / plain:>10.2f}{drafted / plain:>9.2f}"
        print(f"{kind:12}{plain:>9.1f}{looked_up:>9.1f}{drafted:>9.1f}{ratios}", flush=True)


if __name__ == "__main__":
    main()
