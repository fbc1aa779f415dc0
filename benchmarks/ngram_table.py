"""Measure how much of human texts an n-gram table predicts, and estimate the gain.

    python benchmarks/ngram_table.py [TABLE] [--model FOLDER] [--data FOLDER]

For texts that the table was not counted on, the tokens are the model's "choices": at each position
the drafts are those that generation would propose, and the text says which would be accepted. With
one, two or three drafts in each pass, this gives the share of tokens that drafts predict, and the
tokens per pass. The gain is an ESTIMATE: tokens per pass divided by the measured cost of a pass
over 2, 3 or 4 rows. A model's own text is more predictable than a human's, most of all greedy text.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from speculation import DATA

from gpt2np import Tokenizer
from gpt2np.generation.ngram_draft import NgramDraft
from gpt2np.generation.ngram_table import NgramTable, find_ngram_table, read_ngram_table
from gpt2np.generation.speculation import PASS_COSTS

_CONTEXT = 1024  # tokens after which a text starts anew, as in GPT-2's context


def texts_of(data: Path) -> Iterator[tuple[str, str]]:
    """Yield held-out texts with their names."""
    yield "WikiText-2, test", (data / "eval/wiki.test.raw").read_text(encoding="utf-8")
    lines = (data / "eval/lambada_test.jsonl").read_text(encoding="utf-8").splitlines()
    yield "LAMBADA", "\n".join(json.loads(line)["text"] for line in lines)
    yield "UDHR, English", (data / "text/udhr/eng.txt").read_text(encoding="utf-8")
    files = sorted((data / "text/code").glob("*.txt"))
    yield "code", "\n".join(file.read_text(encoding="utf-8")[:20_000] for file in files)
    yield "stories, held out", (data / "stories/valid.txt").read_text(encoding="utf-8")


def replay(ids: list[int], table: NgramTable | None, n_drafts: int) -> tuple[int, int]:
    """Return the number of accepted draft tokens and of passes if a model wrote `ids`."""
    accepted = passes = 0
    for start in range(0, len(ids) - 1, _CONTEXT):
        text = ids[start : start + _CONTEXT]
        source, position = NgramDraft(lambda: table), 1
        while position < len(text):
            draft, _ = source.propose(text[:1], text[1:position], n_drafts)
            pairs = zip(draft, text[position:], strict=False)
            n_right = next((i for i, (a, b) in enumerate(pairs) if a != b), len(draft))
            n_right = min(n_right, len(text) - position - 1)
            source.update(draft, text[position : position + n_right + 1])
            accepted, passes, position = accepted + n_right, passes + 1, position + n_right + 1
    return accepted, passes


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("table", nargs="?", type=Path, help="n-gram table (default: the package's for GPT-2)")
    add("--data", type=Path, default=DATA, help=f"folder with the texts (default: {DATA})")
    add("--model", type=Path, help="folder with the vocabulary (default: DATA/gpt2-tokenizer)")
    add("--tokens", type=int, default=60_000, help="tokens of each text (default: 60000)")
    args = parser.parse_args()
    tokenizer = Tokenizer.load(args.model or args.data / "gpt2-tokenizer")
    vocabulary = tokenizer.vocabulary.token_bytes
    table = read_ngram_table(args.table) if args.table else find_ngram_table(None, vocabulary)
    if table is None or not table.matches(vocabulary):
        raise SystemExit("the table has another vocabulary")
    print("share of tokens that the drafts predict, and estimated speed (1 = without drafts)")
    print(
        f"{'':20}{'tokens':>8}{'1 draft':>16}{'2 drafts':>16}{'3 drafts':>16}{'text only, 3':>16}"
    )
    for name, text in texts_of(args.data):
        ids = tokenizer.encode(text, disallowed_special=())[: args.tokens]
        cells = ""
        for n_drafts, source in ((1, table), (2, table), (3, table), (3, None)):
            accepted, passes = replay(ids, source, n_drafts)
            n_tokens = accepted + passes
            speed = n_tokens / passes / PASS_COSTS[1 + n_drafts]
            cells += f"{accepted / n_tokens:9.1%}{speed:7.2f}"
        print(f"{name:20}{len(ids):8,}{cells}", flush=True)


if __name__ == "__main__":
    main()
