"""Byte-pair merging, and a cache of token ids.

Tokens are strings as in vocab.json ("Ġthe"). The key of a merge is two tokens separated by a space
("Ġt he"), as in merges.txt.
"""

from __future__ import annotations

from _thread import allocate_lock  # threading.Lock, without importing threading
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise
from re import DOTALL, findall

Ranks = Mapping[str, int]
"""Rank of each merge, by the merge's key. The pair with the lowest rank is merged first."""

_CHUNK = 64  # characters; up to this many, scanning all of them is faster than a heap
_NO_RANK = 1 << 62

_ENTRY_BYTES = 240  # size of an empty string, an empty tuple, and their dictionary entry
_MAX_KEY_LENGTH = 256  # characters; longer texts rarely repeat, and are not cached


def merge_pairs(text: str, ranks: Ranks) -> list[str]:
    """Merge the characters of `text` to tokens until no merge applies to neighbors.

    Each step merges the pair with the lowest rank. If this pair occurs several times, its leftmost
    occurrence is merged.

        merge_pairs("hug", {"u g": 0, "h ug": 1}) → ["hug"]

    A long text is merged in chunks. The last tokens before a chunk are merged again with the chunk.
    The tokens of both sides of a border are those of the whole text if the two tokens at the border
    don't merge in any way: a merge across the border would also occur in the two tokens alone.
    Otherwise, the chunk is doubled. So the time is O(n log n) at worst, for any ranks.

    Sources: Sennrich et al. 2016, algorithm 1; gpt-2/src/encoder.py.
    """
    if len(text) <= _CHUNK:
        return _merge_by_scanning(text, ranks)

    @lru_cache(maxsize=256)  # a long text without spaces often repeats itself
    def merge(chunk: str) -> list[str]:
        return (_merge_by_scanning if len(chunk) <= 4 * _CHUNK else _merge_by_heap)(chunk, ranks)

    tokens: list[str] = []
    done, size = 0, _CHUNK
    while done < len(text):
        n_kept = max(0, len(tokens) - size // 16)
        new = merge("".join(tokens[n_kept:]) + text[done : done + size])
        border = [*tokens[n_kept - 1 : n_kept], new[0]] if n_kept else []
        if merge("".join(border)) == border:
            tokens[n_kept:] = new
            done, size = done + size, _CHUNK
        else:
            size *= 2
    return tokens


def _merge_by_scanning(text: str, ranks: Ranks) -> list[str]:
    tokens, rank_of = list(text), ranks.get
    pair_ranks = [rank_of(pair, _NO_RANK) for pair in map(" ".join, pairwise(tokens))]
    while pair_ranks and (lowest := min(pair_ranks)) != _NO_RANK:
        left = pair_ranks.index(lowest)
        merged = tokens[left] = tokens[left] + tokens.pop(left + 1)
        del pair_ranks[left]
        if left:
            pair_ranks[left - 1] = rank_of(f"{tokens[left - 1]} {merged}", _NO_RANK)
        if left < len(pair_ranks):
            pair_ranks[left] = rank_of(f"{merged} {tokens[left + 1]}", _NO_RANK)
    return tokens


def _merge_by_heap(text: str, ranks: Ranks) -> list[str]:
    """Merge pairs in O(n log n), with a linked list of tokens and a heap of ranks.

    A merged token is stored at the index of the left token; the index of the right token gets "".
    """
    tokens, end = list(text), len(text)
    after, before = list(range(1, end + 1)), list(range(-1, end - 1))
    pairs = enumerate(map(" ".join, pairwise(tokens)))
    heap = [(ranks[pair], left) for left, pair in pairs if pair in ranks]
    heapify(heap)
    while heap:
        rank, left = heappop(heap)
        right = after[left]
        if right == end or ranks.get(f"{tokens[left]} {tokens[right]}") != rank:
            continue  # another merge has changed one of the two tokens
        tokens[left] += tokens[right]
        tokens[right] = ""
        following = after[left] = after[right]
        if following < end:
            before[following] = left
        for first, second in ((before[left], left), (left, following)):
            if first >= 0 and second < end:
                new = ranks.get(f"{tokens[first]} {tokens[second]}")
                if new is not None:
                    heappush(heap, (new, first))
    return [token for token in tokens if token]


JoinablePairs = frozenset[tuple[str, str]]
"""Pairs of characters that some merge puts next to each other, at the border of two tokens."""


def find_joinable_pairs(ranks: Ranks) -> JoinablePairs:
    """Return the pairs of characters between which a merge of `ranks` can join two tokens."""
    return frozenset(findall("(.) (.)", "\n".join(ranks), DOTALL))


def split_at_unjoinable(text: str, joinable: JoinablePairs) -> Iterator[str]:
    """Cut `text` between characters that no merge joins: the chunks have the tokens of `text`.

    GPT-2's merges join 2,689 of the 65,536 pairs of bytes.
    """
    start = 0
    for end, pair in enumerate(pairwise(text), 1):
        if pair not in joinable:
            yield text[start:end]
            start = end
    yield text[start:]


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
