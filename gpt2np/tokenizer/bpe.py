"""Byte-pair merging, and a cache of token ids.

Tokens are strings as in vocab.json ("Ġthe"). The key of a merge is two tokens separated by a space
("Ġt he"), as in merges.txt.
"""

from __future__ import annotations

from _thread import allocate_lock  # threading.Lock, without importing threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import islice, pairwise
from operator import gt

Ranks = Mapping[str, int]
"""Rank of each merge, by the merge's key. The pair with the lowest rank is merged first."""

_SHORT_PIECE = 64  # up to this many tokens, scanning all of them is faster than a heap
_NO_RANK = 1 << 62

_ENTRY_BYTES = 240  # size of an empty string, an empty tuple, and their dictionary entry
_MAX_KEY_LENGTH = 256  # characters; longer texts rarely repeat, and are not cached


def merge_pairs(tokens: Sequence[str], ranks: Ranks) -> list[str]:
    """Merge neighboring tokens until no merge applies. In a string, each character is a token.

    Each step merges the pair with the lowest rank. If this pair occurs several times, its leftmost
    occurrence is merged.

        merge_pairs(["h", "u", "g"], {"u g": 0, "h ug": 1}) → ["hug"]

    Sources: Sennrich et al. 2016, algorithm 1; gpt-2/src/encoder.py.
    """
    if len(tokens) <= _SHORT_PIECE:
        return _merge_by_scanning(tokens, ranks)
    return _merge_by_heap(tokens, ranks)


def _merge_by_scanning(symbols: Sequence[str], ranks: Ranks) -> list[str]:
    tokens, rank_of = list(symbols), ranks.get
    pair_ranks = [rank_of(pair, _NO_RANK) for pair in map(" ".join, pairwise(tokens))]
    while pair_ranks and (lowest := min(pair_ranks)) != _NO_RANK:
        left = pair_ranks.index(lowest)
        tokens[left] += tokens.pop(left + 1)
        del pair_ranks[left]
        if left:
            pair_ranks[left - 1] = rank_of(f"{tokens[left - 1]} {tokens[left]}", _NO_RANK)
        if left < len(pair_ranks):
            pair_ranks[left] = rank_of(f"{tokens[left]} {tokens[left + 1]}", _NO_RANK)
    return tokens


def _merge_by_heap(symbols: Sequence[str], ranks: Ranks) -> list[str]:
    """Merge pairs in O(n log n), with a linked list of tokens and a heap of ranks.

    A merged token is stored at the index of the left token; the index of the right token gets "".
    """
    one_object = {symbol: symbol for symbol in set(symbols)}  # saves 76 bytes a symbol
    tokens = [one_object[symbol] for symbol in symbols]
    end = len(tokens)
    after = array("l", range(1, end + 1))  # an eighth of a list's memory
    before = array("l", range(-1, end - 1))
    positions: dict[int, array[int]] = {}
    heap: list[int] = []
    for position, pair in enumerate(map(" ".join, pairwise(tokens))):
        if pair in ranks:
            _push(positions, heap, ranks[pair], position)
    while heap:
        rank = heappop(heap)
        todo = positions.pop(rank)
        if any(map(gt, todo, islice(todo, 1, None))):
            todo = array("l", sorted(todo))
        for n_done, left in enumerate(todo, 1):
            right = after[left]
            if right == end or ranks.get(f"{tokens[left]} {tokens[right]}") != rank:
                continue  # another merge has changed one of the two tokens
            tokens[left] += tokens[right]
            tokens[right] = ""
            following = after[left] = after[right]
            previous = before[left]
            lowest = rank + 1
            if following < end:
                before[following] = left
                new = ranks.get(f"{tokens[left]} {tokens[following]}")
                if new is not None:
                    lowest = min(lowest, _push(positions, heap, new, left))
            if previous >= 0:
                new = ranks.get(f"{tokens[previous]} {tokens[left]}")
                if new is not None:
                    lowest = min(lowest, _push(positions, heap, new, previous))
            if lowest <= rank:
                for position in todo[n_done:]:  # a pair of lower rank has to be merged first
                    _push(positions, heap, rank, position)
                break
    return [token for token in tokens if token]


def _push(positions: dict[int, array[int]], heap: list[int], rank: int, position: int) -> int:
    if rank in positions:
        positions[rank].append(position)
    else:
        positions[rank] = array("l", [position])
        heappush(heap, rank)
    return rank


class BoundedCache(dict[str, tuple[int, ...]]):
    """Dictionary from text to token ids. `cache[text]` computes and stores missing ids.

    A cache hit costs one look-up in C. When the entries exceed `limit` bytes, the cache is emptied;
    frequent entries soon return. Threads can share a cache; at worst, two threads compute the same
    entry.
    """

    def __init__(self, compute: Callable[[str], tuple[int, ...]], limit: int) -> None:
        super().__init__()
        self._compute = compute
        self._limit = limit
        self._lock = allocate_lock()
        self.nbytes = 0  # estimated size of the entries

    def __missing__(self, text: str) -> tuple[int, ...]:
        ids = self._compute(text)
        if len(text) <= _MAX_KEY_LENGTH:
            size = _ENTRY_BYTES + 4 * len(text) + 8 * len(ids)
            with self._lock:
                self.nbytes += size
                if self.nbytes > self._limit:
                    self.clear()
                    self.nbytes = size
                self[text] = ids
        return ids
