"""Check that draft tokens change no text: prompts of five classes, many settings of options.

    python benchmarks/draft_equality.py [MODEL] [--prompts 200] [--tokens 40]

Each setting continues all prompts without draft tokens in batches of 16, and with draft tokens one
by one, in batches of 5, and streamed. Without small-matrix kernels, near-ties may fall otherwise.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from speculation import CLASSES, DATA, prompts_of

from gpt2np import LanguageModel
from gpt2np.generation import Options
from gpt2np.generation.callbacks import GenerateArguments
from gpt2np.hub import find_model
from gpt2np.hub.model_files import NGRAM_TABLE_FILE

SETTINGS: dict[str, Options] = {
    "greedy": {"temperature": 0.0},
    "defaults": {},
    "temperature 1, top-p": {"temperature": 1.0, "top_k": 0, "top_p": 0.9},
    "min-p, typical": {"top_k": 0, "min_p": 0.05, "typical_p": 0.9},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2},
    "no repeated n-grams": {"temperature": 0.0, "no_repeat_ngram_size": 3},
    "bans and bias": {"bad_words": ["the", "and"], "logit_bias": {11: -3.0}, "min_new_tokens": 9},
    "stop strings": {"stop": [".", "\n"], "stop_regex": "[A-Z][a-z]+ [A-Z]"},
    "constraint": {"regex": "[a-z ,.]+"},
    "log probabilities": {"logprobs": 2},
    "three samples": {"num_return_sequences": 3},
    "best of three": {"best_of": 3, "temperature": 1.0},
    "window": {"temperature": 0.0, "window": 16},
}


def continuations(
    lm: LanguageModel, prompts: list[str], size: int, options: Options
) -> list[tuple[object, str]]:
    """Continue prompts in batches of `size`; return what must be equal, and the texts."""
    results: list[tuple[object, str]] = []
    for start in range(0, len(prompts), size):
        batch = prompts[start : start + size]
        seeds: list[GenerateArguments] = [{"seed": start + i} for i in range(len(batch))]
        for completion in lm.generate_batch(batch, seeds, **options):
            for one in [completion, *completion.alternatives]:
                results.append(((one.ids, one.finish_reason, one.logprobs), one.text))
    return results


def main() -> None:
    """Check all settings; print one line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("model", nargs="?", default="bundled", help="name or folder (default: bundled)")
    add("--prompts", type=int, default=200, help="number of prompts (default: 200)")
    add("--tokens", type=int, default=40, help="new tokens per prompt (default: 40)")
    add("--data", type=Path, default=DATA, help=f"folder with the texts (default: {DATA})")
    args = parser.parse_args()
    lm = LanguageModel.load(args.model)
    table = find_model(args.model).path / NGRAM_TABLE_FILE
    if table.exists():
        lm.use_draft(table)  # also without small-matrix kernels
    number = -(-args.prompts // len(CLASSES))
    prompts = [p for kind in CLASSES for p in prompts_of(kind, args.data, number)][: args.prompts]
    n_different = 0
    for name, setting in SETTINGS.items():
        options: Options = {**setting, "max_new_tokens": args.tokens}
        plain: Options = {**options, "draft": "none"}
        expected = continuations(lm, prompts, 16, plain)
        found = [continuations(lm, prompts, size, options) for size in (1, 5)]
        differing = sum(a != b for results in found for a, b in zip(expected, results, strict=True))
        streamed = 0
        if len(expected) == len(prompts):
            for seed, prompt in enumerate(prompts):
                given: Options = {**options, "seed": seed}
                streamed += "".join(lm.stream(prompt, **given)) != expected[seed][1]
        n_different += differing + streamed
        print(f"{name:22}{len(expected):5} texts: {differing + streamed} differ", flush=True)
    raise SystemExit(int(n_different > 0))


if __name__ == "__main__":
    main()
