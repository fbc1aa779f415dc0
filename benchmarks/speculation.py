"""Measure tokens per second with and without draft tokens, in turns in one process.

    python benchmarks/speculation.py [MODEL] [--tokens 200] [--rounds 3]

The program continues prompts of several kinds, greedily and at the default options, without drafts
and with the default drafts. It also checks that the ids are the same.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from common import DATA

from gpt2np import LanguageModel
from gpt2np.generation.options import Options

SETTINGS: dict[str, Options] = {"greedy": {"temperature": 0.0}, "defaults": {}}
CLASSES = ("stories", "code", "lists", "random bytes", "other languages")


def prompts_of(kind: str, number: int) -> list[str]:
    """Return prompts of one class; all but lists and random bytes come from the test data."""
    rng = random.Random(kind)
    if kind == "lists":
        items = ["apples", "pears", "plums", "figs", "nuts", "bread", "cheese", "salt"]
        lists = ([rng.choice(items) for _ in range(rng.choice([6, 9, 14]))] for _ in range(number))
        return ["".join(f"{i}. {x}\n" for i, x in enumerate(names, 1)) for names in lists]
    if kind == "random bytes":
        return [bytes(rng.choices(range(32, 256), k=60)).decode("latin-1") for _ in range(number)]
    patterns = {
        "stories": "stories/valid.txt",
        "code": "text/code/*",
        "other languages": "text/udhr/*",
    }
    files = sorted(DATA.glob(patterns[kind]))
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    if kind == "stories":
        texts = texts[0].split("<|endoftext|>")
    texts = [text.strip() for text in texts if len(text) > 600]
    return [_excerpt(rng, rng.choice(texts), kind) for _ in range(number)]


def _excerpt(rng: random.Random, text: str, kind: str) -> str:
    if kind != "stories":
        start = rng.randrange(len(text) - 400)
        return text[start : start + 200]
    words = text.split()
    start = rng.randrange(len(words) - 50)
    return " ".join(words[start : start + rng.choice([8, 15, 30])])


def measure_class(lm: LanguageModel, prompts: list[str], options: Options, rounds: int) -> str:
    """Measure CPU time, which other programs disturb less; return a line of the table."""
    totals = {"none": 0.0, "auto": 0.0}
    n_tokens, worst = 0, float("inf")
    for number, prompt in enumerate(prompts):
        seconds: dict[str, list[float]] = {way: [] for way in totals}
        ids = {}
        for turn in range(-1, rounds):  # turn -1 is a warm-up
            for way in sorted(totals, reverse=bool(turn % 2)):
                lm.use_draft(way)
                given: Options = {**options, "seed": number, "ignore_eos": True}
                start = time.process_time()
                ids[way] = lm.generate(prompt, **given).ids
                if turn >= 0:
                    seconds[way].append(time.process_time() - start)
        assert all(found == ids["none"] for found in ids.values()), "drafts changed the text"
        medians = {way: statistics.median(values) for way, values in seconds.items()}
        for way, middle in medians.items():
            totals[way] += middle
        worst = min(worst, medians["none"] / medians["auto"])
        n_tokens += len(ids["none"])
    speeds = "".join(f"{n_tokens / seconds:9.1f}" for seconds in totals.values())
    return f"{speeds}{totals['none'] / totals['auto']:9.2f}{worst:15.2f}"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("model", nargs="?", default="bundled", help="name or folder (default: bundled)")
    add("--prompts", type=int, default=10, help="prompts of each class (default: 10)")
    add("--tokens", type=int, default=200, help="new tokens per prompt (default: 200)")
    add("--rounds", type=int, default=3, help="number of rounds (default: 3)")
    args = parser.parse_args()
    lm = LanguageModel.load(args.model)
    print(f"{'tokens/s':26}{'none':>9}{'auto':>9}{'auto ÷':>9}{'worst prompt':>15}")
    for setting, chosen in SETTINGS.items():
        for kind in CLASSES:
            prompts = prompts_of(kind, args.prompts)
            options: Options = {**chosen, "max_new_tokens": args.tokens}
            line = measure_class(lm, prompts, options, args.rounds)
            print(f"{setting:9}{kind:17}{line}", flush=True)


if __name__ == "__main__":
    main()
