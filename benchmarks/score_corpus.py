"""Scoring of documents of natural length: gpt2np against transformers in padded batches.

    OMP_NUM_THREADS=1 python benchmarks/score_corpus.py [--model MODEL] [--documents N]

Both score the same documents, in turns in one process; the table has the medians of processor time,
which is comparable on a busy machine if each has one thread. transformers
sorts nothing and pads each batch to its longest document, as its users do. The limit is the speed
of gpt2np's prefill of a prompt of 512 tokens.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gpt2np import LanguageModel
from gpt2np.evaluation.corpus import score_documents
from gpt2np.evaluation.options import ScoreOptions

DATA = Path(os.environ.get("GPT2NP_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
STORIES = DATA / "stories" / "valid.txt"


def natural_documents(count: int, path: Path) -> list[str]:
    """Return runs of paragraphs of stories, with lengths spread like those of web documents."""
    rng = random.Random(1)
    text = path.read_text(encoding="utf-8").replace("<|endoftext|>", "\n\n")
    paragraphs = [paragraph for paragraph in text.split("\n\n") if paragraph.strip()]
    documents = []
    for _ in range(count):
        length = min(4000, int(rng.lognormvariate(6.3, 0.9)))  # characters
        start = rng.randrange(len(paragraphs) - 200)
        documents.append("\n\n".join(paragraphs[start : start + 200])[:length])
    return documents


def score_padded(model: Any, lm: LanguageModel, texts: list[str], batch_size: int) -> list[float]:
    """Score texts with transformers in padded batches; return their log probabilities."""
    import torch

    totals: list[float] = []
    for start in range(0, len(texts), batch_size):
        context = lm.model.config.n_positions
        ids = [lm.tokenizer.encode(text)[:context] for text in texts[start : start + batch_size]]
        longest = max(map(len, ids))
        padded = torch.zeros(len(ids), longest, dtype=torch.long)
        mask = torch.zeros_like(padded)
        for row, text_ids in enumerate(ids):
            padded[row, : len(text_ids)] = torch.tensor(text_ids)
            mask[row, : len(text_ids)] = 1
        with torch.no_grad():
            logits = model(padded, attention_mask=mask).logits[:, :-1]
            logprobs = torch.log_softmax(logits, -1)
            chosen = logprobs.gather(2, padded[:, 1:, None])[..., 0]
        totals += ((chosen.double() * mask[:, 1:]).sum(1)).tolist()
    return totals


def seconds(function: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--texts", type=Path, default=STORIES)
    args = parser.parse_args()
    from transformers import GPT2LMHeadModel

    lm = LanguageModel.load(args.model)
    context = lm.model.config.n_positions
    texts = natural_documents(args.documents, args.texts)
    texts = [lm.tokenizer.decode(lm.tokenizer.encode(text)[: context - 8]) for text in texts]
    lengths = [len(lm.tokenizer.encode(text)) for text in texts]
    n_tokens = sum(lengths)
    reference = GPT2LMHeadModel.from_pretrained(lm.folder, dtype="float32").eval()  # type: ignore[no-untyped-call]
    found: dict[str, Any] = {}

    def run_gpt2np() -> None:
        found["gpt2np"] = [
            row["log_probability"] for row in score_documents(lm, texts, ScoreOptions())
        ]

    def run_padded() -> None:
        found["transformers"] = score_padded(reference, lm, texts, args.batch_size)

    prompt = np.random.default_rng(1).integers(0, lm.model.config.vocab_size, min(512, context))

    def prefill() -> None:
        for _ in range(4):
            lm.model.forward([prompt], logits_indices=[len(prompt) - 1])

    score_documents(lm, texts[:2], ScoreOptions())  # packs the weights
    times: dict[str, list[float]] = {"gpt2np": [], "transformers": [], "prefill": []}
    for _ in range(args.rounds):
        for name, function in (
            ("gpt2np", run_gpt2np),
            ("transformers", run_padded),
            ("prefill", prefill),
        ):
            times[name].append(seconds(function))
    medians = {name: statistics.median(values) for name, values in times.items()}
    limit = 4 * len(prompt) / medians["prefill"]
    ratios = [b / a for a, b in zip(times["gpt2np"], times["transformers"], strict=True)]
    difference = max(
        abs(a - b) / abs(b) for a, b in zip(found["gpt2np"], found["transformers"], strict=True)
    )
    quartiles = statistics.quantiles(lengths, n=4)
    print(f"{len(texts)} documents, {n_tokens:,} tokens, quartiles {quartiles}")
    print(
        f"gpt2np        {n_tokens / medians['gpt2np']:8,.0f} tokens/s, "
        f"{n_tokens / medians['gpt2np'] / limit:.0%} of prefill's {limit:,.0f}"
    )
    print(f"transformers  {n_tokens / medians['transformers']:8,.0f} tokens/s (padded)")
    print(
        f"ratio         {statistics.median(ratios):.2f}, of rounds {min(ratios):.2f} to "
        f"{max(ratios):.2f}; largest relative difference {difference:.1e}"
    )


if __name__ == "__main__":
    main()
