"""Measure how long the token masks of regular expressions take, in milliseconds.

    python benchmarks/constraint_masks.py [MODEL]

The first mask includes the trie of the vocabulary and the automaton of the expression; the next
mask follows after one token.
"""

import argparse
import time

from gpt2np import Tokenizer
from gpt2np.benchmark.timing import seconds_of
from gpt2np.constraints import text_constraint
from gpt2np.hub import find_vocabulary

PATTERNS = (r"(?:yes|no)", r"\d+(?:\.\d\d)?", r"(?:\w+ ){5,100}end", ".{1,500}")


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("model", nargs="?", default="gpt2", help="name, folder or vocabulary (default: gpt2)")
    tokenizer = Tokenizer.load(find_vocabulary(parser.parse_args().model).path)
    special_ids = frozenset(tokenizer.special_tokens.values())
    rows = max(tokenizer.vocabulary.token_bytes) + 1
    print(f"{'pattern':24}{'first mask':>12}{'next mask':>12}")
    for pattern in PATTERNS:
        table = dict(tokenizer.vocabulary.token_bytes)  # a new object, so the trie is built, too
        began = time.perf_counter()
        start = text_constraint(table, rows, special_ids, special_ids, regex=pattern)
        mask = start.allowed()
        first = time.perf_counter() - began
        after = start.advance(int(mask.argmax()))
        print(f"{pattern:24}{1e3 * first:12.1f}{1e3 * seconds_of(after.allowed):12.1f}")


if __name__ == "__main__":
    main()
