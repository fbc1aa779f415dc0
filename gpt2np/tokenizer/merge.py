"""Byte-pair merging: the one algorithm of the tokenizer.

Tokens are strings of the vocabulary's characters ("Ġthe"), and a merge is looked up under the two
tokens with a space between them ("Ġt he"), just as merges.txt lists it.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from itertools import pairwise

Ranks = Mapping[str, int]
"""left + " " + right → rank. The pair of lowest rank is merged first."""

_SHORT = 64  # up to so many tokens, looking through all of them beats keeping books
_NEVER = 1 << 62


def merge_pairs(tokens: list[str], ranks: Ranks) -> list[str]:
    """Merge neighbours, always the leftmost pair of lowest rank, until none can be merged.

    This is algorithm 1 of Sennrich et al. 2016, applied as in gpt-2/src/encoder.py:

        merge_pairs(["h", "u", "g"], {"u g": 0, "h ug": 1}) → ["hug"]
    """
    return _merge_few(tokens, ranks) if len(tokens) <= _SHORT else _merge_many(tokens, ranks)


def _merge_few(tokens: list[str], ranks: Ranks) -> list[str]:
    tokens, rank_of = tokens[:], ranks.get
    waiting = [rank_of(pair, _NEVER) for pair in map(" ".join, pairwise(tokens))]
    while waiting and (lowest := min(waiting)) != _NEVER:
        at = waiting.index(lowest)
        tokens[at] += tokens.pop(at + 1)
        del waiting[at]
        if at:
            waiting[at - 1] = rank_of(f"{tokens[at - 1]} {tokens[at]}", _NEVER)
        if at < len(waiting):
            waiting[at] = rank_of(f"{tokens[at]} {tokens[at + 1]}", _NEVER)
    return tokens


def _merge_many(tokens: list[str], ranks: Ranks) -> list[str]:
    """The same in O(n log n): a linked list of tokens, and for each rank the places that wait.

    A token lives at the place of its first character; the places that it took over hold "". What
    waits for a rank is done in one go from left to right, unless a merge gives rise to a pair of
    lower rank: then that one comes first.
    """
    tokens = tokens[:]
    end = len(tokens)
    after = list(range(1, end + 1))
    before = list(range(-1, end - 1))
    places = _places_by_rank(tokens, ranks)
    waiting = list(places)
    heapify(waiting)
    while waiting:
        rank = heappop(waiting)
        todo = sorted(places.pop(rank))
        for done, left in enumerate(todo, 1):
            right = after[left]
            if right == end or ranks.get(f"{tokens[left]} {tokens[right]}") != rank:
                continue  # merged otherwise in the meantime
            tokens[left] += tokens[right]
            tokens[right] = ""
            following = after[left] = after[right]
            previous = before[left]
            lowest = rank + 1
            if following < end:
                before[following] = left
                new = ranks.get(f"{tokens[left]} {tokens[following]}")
                if new is not None:
                    lowest = min(lowest, _wait(places, waiting, new, left))
            if previous >= 0:
                new = ranks.get(f"{tokens[previous]} {tokens[left]}")
                if new is not None:
                    lowest = min(lowest, _wait(places, waiting, new, previous))
            if lowest <= rank:
                for place in todo[done:]:
                    _wait(places, waiting, rank, place)
                break
    return [token for token in tokens if token]


def _places_by_rank(tokens: list[str], ranks: Ranks) -> dict[int, list[int]]:
    places: dict[int, list[int]] = {}
    for place, pair in enumerate(map(" ".join, pairwise(tokens))):
        if pair in ranks:
            places.setdefault(ranks[pair], []).append(place)
    return places


def _wait(places: dict[int, list[int]], waiting: list[int], rank: int, place: int) -> int:
    if rank in places:
        places[rank].append(place)
    else:
        places[rank] = [place]
        heappush(waiting, rank)
    return rank
