"""Learning merges: the most frequent pair of neighbours becomes a token, again and again.

All pieces stand one after another in one array. A token's id is written at the first and at the
last place of the token, so its neighbours are found without links: the next one begins where it
ends, the last place of the one before is just in front. A merge writes a few numbers per
occurrence, and only the neighbours' counts change (Sennrich et al. 2016, section 3.2, recounts; the
queue of pairs with their places is that of `tokenizers`, models/bpe/trainer.rs).

    place     0  1  2  3  4  5  6  7
    "banana"     b  a  n  a  n  a          (a separator at either end)
    an → X       b  X  X  X  X  a
    Xa → Y       b  X  X  Y  ·  Y
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace

import numpy as np
from numpy.typing import NDArray

SEPARATOR = -1  # between two pieces
_GONE = -2  # within a token

_FEW = 32  # up to so many occurrences Python's loop is faster than NumPy's calls
_ID_BITS = 32
_LOW = (1 << _ID_BITS) - 1

Places = list[int] | NDArray[np.int32]
Queued = tuple[int, int, int, Places]  # -count, pair, serial number (never equal), places
Progress = Callable[[int, int], object]


@dataclass(frozen=True)
class Limits:
    """When learning ends, and which tokens are not made.

    Attributes:
        vocab_size: number of tokens, with those there are at the start.
        min_frequency: a pair that occurs less often is not merged.
        max_token_length: tokens of more than two characters stay shorter than this.
    """

    vocab_size: int
    min_frequency: int
    max_token_length: int


@dataclass
class Changes:
    """What a merge does to pairs: by how much each count changes, and where each now begins."""

    counts: defaultdict[int, int]
    places: dict[int, Places]


class Pieces:
    """The tokens of all pieces; see the module's docstring.

    Attributes:
        tokens: (places,) ids, with a SEPARATOR before, between and after the pieces.
        weights: (places,) how often the piece at this place occurs in the corpus.
        lengths: (ids,) the number of places that a token takes.
    """

    def __init__(
        self, tokens: NDArray[np.int32], weights: NDArray[np.int64], limits: Limits, ids: int
    ) -> None:
        self.tokens, self.weights = tokens, weights
        self.lengths = np.ones(max(ids, limits.vocab_size) + 1, np.int32)
        self._limit = limits.max_token_length
        # Indexing a view gives Python's numbers, several times as fast as indexing the array.
        self._token, self._weight = memoryview(tokens), memoryview(weights)
        self._length = memoryview(self.lengths)

    def pairs(self) -> Iterator[tuple[int, int, Places]]:
        """Each pair of neighbours, how often it occurs, and its places."""
        places = np.flatnonzero((self.tokens[:-1] >= 0) & (self.tokens[1:] >= 0)).astype(np.int32)
        lefts = self.tokens[places]
        for left, _, group in self._groups(lefts, places):
            begins = np.asarray(group, np.int32)
            for right, count, places in self._groups(self.tokens[begins + 1], begins):
                yield left << _ID_BITS | right, count, places

    def merge(self, pair: int, new: int, places: Places) -> Changes:
        """Make `pair` the token `new` wherever it still begins at one of `places` (ascending)."""
        left, right = pair >> _ID_BITS, pair & _LOW
        self._length[new] = self._length[left] + self._length[right]
        if len(places) > _FEW:
            return self._merge_many(left, right, new, np.asarray(places, np.int32))
        return self._merge_few(left, right, new, places)

    def tokens_per_piece(self) -> NDArray[np.int64]:
        """(pieces,) the number of tokens."""
        ends = np.flatnonzero(self.tokens == SEPARATOR)
        # A token of several places is written at two of them.
        halves = np.where(self.tokens < 0, 0, np.where(self.lengths[self.tokens] == 1, 2, 1))
        sums = np.concatenate(([0], np.cumsum(halves)))
        return np.asarray(np.diff(sums[ends]) // 2)

    def _merge_few(self, left: int, right: int, new: int, places: Places) -> Changes:
        token, length = self._token, self._length
        to_right, to_end = length[left], length[new]
        counts: defaultdict[int, int] = defaultdict(int)
        begins: dict[int, Places] = defaultdict(list)
        for start in places if isinstance(places, list) else places.tolist():
            middle, end = start + to_right, start + to_end
            if token[start] != left or token[middle] != right:
                continue
            weight, before, after = self._weight[start], token[start - 1], token[end]
            token[middle - 1] = token[middle] = _GONE
            token[start] = token[end - 1] = new
            if before >= 0:
                counts[before << _ID_BITS | left] -= weight
                if length[before] + to_end < self._limit:
                    counts[before << _ID_BITS | new] += weight
                    begins[before << _ID_BITS | new].append(start - length[before])
            if after >= 0:
                counts[right << _ID_BITS | after] -= weight
                if length[after] + to_end < self._limit:
                    counts[new << _ID_BITS | after] += weight
                    begins[new << _ID_BITS | after].append(start)
        return Changes(counts, begins)

    def _merge_many(self, left: int, right: int, new: int, places: NDArray[np.int32]) -> Changes:
        token = self.tokens
        to_right, to_end = self._length[left], self._length[new]
        starts = places[(token[places] == left) & (token[places + to_right] == right)]
        if left == right:
            starts = _every_other(starts, to_right)
        ends = starts + to_end
        before, after = token[starts - 1], token[ends]
        token[starts + to_right - 1] = _GONE
        token[starts + to_right] = _GONE
        token[starts] = token[ends - 1] = new
        touching = np.flatnonzero(starts[1:] == ends[:-1])  # the next occurrence follows at once

        changes = Changes(defaultdict(int), {})
        if len(touching):
            count = int(self.weights[starts[touching]].sum())
            changes.counts[right << _ID_BITS | left] -= count
            if 2 * to_end < self._limit:
                self._add(changes, new << _ID_BITS | new, count, starts[touching])
            before[touching + 1] = after[touching] = SEPARATOR
        for other, count, begins in self._groups(before, starts - self.lengths[before]):
            changes.counts[other << _ID_BITS | left] -= count
            if self._length[other] + to_end < self._limit:
                self._add(changes, other << _ID_BITS | new, count, begins)
        for other, count, begins in self._groups(after, starts):
            changes.counts[right << _ID_BITS | other] -= count
            if self._length[other] + to_end < self._limit:
                self._add(changes, new << _ID_BITS | other, count, begins)
        return changes

    @staticmethod
    def _add(changes: Changes, pair: int, count: int, begins: Places) -> None:
        changes.counts[pair] += count
        if pair in changes.places:
            begins = np.union1d(changes.places[pair], begins)
        changes.places[pair] = begins

    def _groups(
        self, neighbours: NDArray[np.int32], places: NDArray[np.int32]
    ) -> Iterator[tuple[int, int, Places]]:
        """For each id among `neighbours` its weight and places, ascending; separators aside."""
        packed = neighbours.astype(np.int64) << _ID_BITS | places
        packed.sort()
        packed = packed[packed.searchsorted(0) :]
        if not len(packed):
            return
        ids, places = packed >> _ID_BITS, (packed & _LOW).astype(np.int32)
        firsts = np.flatnonzero(np.diff(ids, prepend=-1))
        weights = np.add.reduceat(self.weights[places], firsts).tolist()
        bounds = [*firsts.tolist(), len(ids)]
        for number, weight, start, end in zip(ids[firsts].tolist(), weights, bounds, bounds[1:]):
            group = places[start:end]
            yield number, weight, group if end - start > _FEW else group.tolist()


def learn_merges(
    pieces: Pieces, tokens: list[str], limits: Limits, progress: Progress | None = None
) -> dict[tuple[int, int], int]:
    """Merge the most frequent pair until the vocabulary is full; new tokens go to `tokens`.

    Of equally frequent pairs that with the smaller left id is first, then the smaller right id. A
    pair's count is brought up to date only when it comes first in the queue.

    Returns:
        (left id, right id) → id of the two merged, by rank. As in `tokenizers` two pairs may make
        the same token, and a pair that comes up a second time takes its later rank.
    """
    counts: defaultdict[int, int] = defaultdict(int)
    queue: list[Queued] = []
    for pair, count, places in pieces.pairs():
        counts[pair] = count
        queue.append((-count, pair, len(queue), places))
    heapify(queue)
    serial = len(queue)
    ids = {token: number for number, token in enumerate(tokens)}
    merges: dict[int, int] = {}
    while queue and len(tokens) < limits.vocab_size:
        queued, pair, number, places = queue[0]
        count = counts[pair]
        if count != -queued:
            heapreplace(queue, (-count, pair, number, places))
            continue
        if count < max(1, limits.min_frequency):
            break
        heappop(queue)
        token = tokens[pair >> _ID_BITS] + tokens[pair & _LOW]
        new = ids.setdefault(token, len(tokens))
        if new == len(tokens):
            tokens.append(token)
        merges.pop(pair, None)
        merges[pair] = new
        changes = pieces.merge(pair, new, places)
        for changed, by in changes.counts.items():
            counts[changed] += by
        for made, places in changes.places.items():
            if counts[made] > 0:
                serial += 1
                heappush(queue, (-counts[made], made, serial, places))
        if progress:
            progress(len(tokens), limits.vocab_size)
    return {(pair >> _ID_BITS, pair & _LOW): new for pair, new in merges.items()}


def _every_other(starts: NDArray[np.int32], length: int) -> NDArray[np.int32]:
    """Of pairs that overlap, as the two "aa" in "aaa", every other, from the left."""
    firsts = np.flatnonzero(np.diff(starts, prepend=-1 - length) != length)
    runs = np.diff(firsts, append=len(starts))
    in_run = np.arange(len(starts)) - np.repeat(firsts, runs)
    return starts[in_run % 2 == 0]
