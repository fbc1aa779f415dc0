"""Byte-pair merging: the one algorithm of the tokenizer."""

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

Merges = Mapping[tuple[int, int], tuple[int, int]]
"""(left id, right id) → (rank, id of the two merged). The lowest rank is merged first."""

_GONE = -1  # in the place of the right one of two merged tokens


def merge_pairs(ids: Sequence[int], merges: Merges) -> list[int]:
    """Merge neighbours, always the leftmost pair of lowest rank, until none can be merged.

    The ids form a linked list and the pairs wait in a heap, so that n ids take O(n log n) time also
    where no white space helps (Sennrich et al. 2016, algorithm 1, asks the same with a scan for
    every merge). A heap entry whose pair has been merged away in the meantime is passed over.
    """
    tokens = list(ids)
    after = list(range(1, len(tokens) + 1))
    before = list(range(-1, len(tokens) - 1))
    pairs = enumerate(zip(tokens, tokens[1:], strict=False))
    waiting = [(*merges[pair], left, pair) for left, pair in pairs if pair in merges]
    heapify(waiting)

    def offer(left: int, right: int) -> None:
        if left >= 0 and right < len(tokens):
            pair = (tokens[left], tokens[right])
            if pair in merges:
                heappush(waiting, (*merges[pair], left, pair))

    while waiting:
        _, merged, left, pair = heappop(waiting)
        right = after[left]
        if right == len(tokens) or (tokens[left], tokens[right]) != pair:
            continue
        tokens[left], tokens[right] = merged, _GONE
        after[left] = after[right]
        if after[left] < len(tokens):
            before[after[left]] = left
        offer(before[left], left)
        offer(left, after[left])
    return [token for token in tokens if token != _GONE]
