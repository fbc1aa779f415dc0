"""Compare bits per character on held-out stories: the bundled model and simpler predictors.

    pip install pyppmd
    python benchmarks/held_out_bits.py ../shared/data/stories

The stories are those of valid.txt; separators do not count as characters. The predictors may use
all of train.txt. The model and the 5-gram also predict the end of each story.
"""

import argparse
import lzma
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from gpt2np import LanguageModel

SEPARATOR = "<|endoftext|>"
ORDER, DISCOUNT = 5, 0.75
ID_BITS = 12  # the bundled vocabulary has 4,096 tokens, so five ids fit into 64 bits
Keys = NDArray[np.uint64]


def read_stories(path: Path) -> list[str]:
    """Read the stories of a file, without separators."""
    parts = path.read_text(encoding="utf-8").split(SEPARATOR)
    return [story for part in parts if (story := part.strip("\n"))]


def model_bits(lm: LanguageModel, stories: Iterable[str]) -> float:
    """Return the bits of the stories by the model.

    Windows have the length of the context and a stride of half of it; each token counts once.
    """
    context = lm.model.config.n_positions
    end = lm.tokenizer.eos_token_id
    nats = 0.0
    for story in tqdm(stories, desc="model", disable=None):
        ids = np.array([end, *lm.tokenizer.encode(story), end])
        done = 1
        while done < len(ids):
            stop = min(len(ids), context + 1 if done == 1 else done + context // 2)
            start = max(0, stop - 1 - context)
            indices = np.arange(done - 1 - start, stop - 1 - start)
            logits = lm.model.forward([ids[start : stop - 1]], logits_indices=indices)
            logits = logits.astype(np.float64)
            logits -= logits.max(-1, keepdims=True)
            target = np.take_along_axis(logits, ids[done:stop, None], -1)[:, 0]
            nats += (np.log(np.exp(logits).sum(-1)) - target).sum()
            done = stop
    return nats / math.log(2)


def ngrams(ids: Keys, n: int) -> Keys:
    """Pack every n consecutive ids into one number, the last id in the lowest bits."""
    keys = np.zeros(len(ids) - n + 1, np.uint64)
    for i in range(n):
        keys = (keys << np.uint64(ID_BITS)) | ids[i : len(ids) - n + 1 + i]
    return keys


def look_up(table: Keys, values: NDArray[np.int64], keys: Keys) -> NDArray[np.int64]:
    """Return the value of each key in a sorted table; 0 for missing keys."""
    indices = np.searchsorted(table, keys).clip(max=len(table) - 1)
    return np.where(table[indices] == keys, values[indices], 0)


def kneser_ney_bits(train: Keys, valid: Keys) -> float:
    """Return the bits by interpolated Kneser-Ney (Chen & Goodman 1999) with a single discount."""
    shift = np.uint64(ID_BITS)
    probability = np.full(len(valid) - ORDER + 1, 2.0**-ID_BITS)
    for n in range(1, ORDER + 1):
        keys, counts = np.unique(ngrams(train, n), return_counts=True)
        if n < ORDER:  # lower orders count distinct contexts instead of occurrences
            longer = np.unique(ngrams(train, n + 1)) & np.uint64((1 << (ID_BITS * n)) - 1)
            keys, counts = np.unique(longer, return_counts=True)
        contexts, first = np.unique(keys >> shift, return_index=True)
        totals, kinds = np.add.reduceat(counts, first), np.diff(np.append(first, len(keys)))
        targets = ngrams(valid, n)[ORDER - n :]
        total = look_up(contexts, totals, targets >> shift)
        kind = look_up(contexts, kinds, targets >> shift)
        count = look_up(keys, counts, targets)
        divisor = np.maximum(total, 1)
        mixed = (np.maximum(count - DISCOUNT, 0) + DISCOUNT * kind * probability) / divisor
        probability = np.where(total > 0, mixed, probability)
    return float(-np.log2(probability).sum())


def added_bits(compress: Callable[[bytes], bytes], train: bytes, valid: bytes) -> float:
    """Return the bits that `valid` adds to the compressed size of `train`."""
    return 8.0 * (len(compress(train + valid)) - len(compress(train)))


def xz(data: bytes) -> bytes:
    """Compress with LZMA2, at its strongest setting."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 26}]
    return lzma.compress(data, filters=filters)


def ppmd(data: bytes) -> bytes:
    """Compress with PPMd of order 8."""
    import pyppmd

    return bytes(pyppmd.compress(data, max_order=8, mem_size=1 << 30))


def main(folder: Path) -> None:
    """Print the bits per character of each predictor."""
    train, valid = read_stories(folder / "train.txt"), read_stories(folder / "valid.txt")
    characters = sum(map(len, valid))
    lm = LanguageModel.load("bundled")

    def ids(stories: list[str]) -> Keys:
        end = lm.tokenizer.eos_token_id
        encoded = [np.array([end, *lm.tokenizer.encode(story)], np.uint64) for story in stories]
        return np.concatenate(encoded)

    def text(stories: list[str]) -> bytes:
        return "\n\n".join(stories).encode()

    print(f"{len(valid)} held-out stories, {characters} characters, {len(ids(valid))} tokens")
    rows: list[tuple[str, Callable[[], float]]] = [
        ("bundled model", lambda: model_bits(lm, valid)),
        ("5-gram over the same tokens", lambda: kneser_ney_bits(ids(train), ids(valid))),
        ("ppmd, order 8, after train.txt", lambda: added_bits(ppmd, text(train), text(valid))),
        ("xz -9e, after train.txt", lambda: added_bits(xz, text(train), text(valid))),
        ("ppmd alone", lambda: 8.0 * len(ppmd(text(valid)))),
        ("xz -9e alone", lambda: 8.0 * len(xz(text(valid)))),
    ]
    for name, bits in rows:
        start = time.perf_counter()
        print(f"{name:32} {bits() / characters:.4f}   ({time.perf_counter() - start:.0f} s)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="folder with train.txt and valid.txt")
    main(parser.parse_args().folder)
