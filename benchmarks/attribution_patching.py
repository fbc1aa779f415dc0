"""Compare attribution patching with exact patching, on 20 pairs of prompts and the bundled model.

    python benchmarks/attribution_patching.py

Prints the Pearson correlation of estimated and exact effects: of all heads and positions, and of
the residual stream by position, pair by pair and pooled. The target is a difference of two logits.
"""

import time

import numpy as np

import gpt2np
from gpt2np import trace
from gpt2np.interp import Target, activation_patching, attribution_patching

WORDS = [("king", "queen"), ("boy", "girl"), ("father", "mother"), ("man", "woman")]
TEMPLATES = [
    "The {} said that",
    "Then the {} was so glad that",
    "The old {} went home, and there",
    "One day the {} looked up, and",
    "Once there was a {} who was so poor that",
]
POINTS = {"heads": "blocks.{}.attn.z", "residual stream": "blocks.{}.resid"}


def main() -> None:
    lm = gpt2np.load("bundled")
    he, she = (lm.tokenizer.encode(word)[0] for word in (" he", " she"))
    target, n_layer = Target(he, she), lm.model.config.n_layer
    pooled: dict[str, list[np.ndarray]] = {kind: [] for kind in POINTS}
    correlations: dict[str, list[float]] = {kind: [] for kind in POINTS}
    seconds = np.zeros(2)
    for template in TEMPLATES:
        for a, b in WORDS:
            prompt, source = template.format(a), trace(lm, template.format(b))
            start = time.perf_counter()
            estimates = attribution_patching(lm, prompt, source, target)
            middle = time.perf_counter()
            for kind, point in POINTS.items():
                names = [point.format(i) for i in range(n_layer)]
                exact = [activation_patching(lm, prompt, source, target, name) for name in names]
                pair = np.stack([[estimates[name] for name in names], exact]).reshape(2, -1)
                correlations[kind].append(float(np.corrcoef(pair)[0, 1]))
                pooled[kind].append(pair)
            seconds += middle - start, time.perf_counter() - middle
    for kind, values in correlations.items():
        r = np.corrcoef(np.concatenate(pooled[kind], axis=1))[0, 1]
        print(f"{kind:<16} pooled {r:.3f}   median {np.median(values):.3f}   min {min(values):.3f}")
    print(f"{len(values)} pairs: {seconds[0]:.1f} s estimated, {seconds[1]:.1f} s exact")


if __name__ == "__main__":
    main()
