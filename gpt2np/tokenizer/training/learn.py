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
from typing import cast

import numpy as np
from numpy.typing import NDArray

SEPARATOR = -1  # between two pieces
_GONE = -2  # within a token

_FEW = 64  # up to so many occurrences Python's loop is faster than NumPy's calls
_ID_BITS = 32
_LOW = (1 << _ID_BITS) - 1

Places = list[int] | NDArray[np.int32]
Queued = tuple[int, int, Places]  # -count, pair, where it begins; no pair comes twice
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


class Pieces:
    """The tokens of all pieces; see the module's docstring.

    Attributes:
        tokens: (places,) ids, with a SEPARATOR before, between and after the pieces.
        weights: (places,) how often the piece at this place occurs in the corpus.
        lengths: (ids,) the number of places that a token takes.
        counts: pair → how often it occurs. That of a merged pair stays as it was, and one that
            would become too long is only ever lowered; both as in `tokenizers`.
    """

    def __init__(
        self, tokens: NDArray[np.int32], weights: NDArray[np.int64], limits: Limits, ids: int
    ) -> None:
        self.tokens, self.weights = tokens, weights
        most = ids + len(tokens)  # a merge leaves one token less
        self.lengths = np.ones(max(ids, min(limits.vocab_size, most)) + 1, np.int32)
        self.counts: defaultdict[int, int] = defaultdict(int)
        self._limit = limits.max_token_length
        # Indexing a view gives Python's numbers, several times as fast as indexing the array.
        self._token, self._weight = tokens.data, weights.data
        self._length = self.lengths.data

    def count_pairs(self) -> dict[int, Places]:
        """Count all pairs of neighbours; returns their places."""
        places = np.flatnonzero((self.tokens[:-1] >= 0) & (self.tokens[1:] >= 0)).astype(np.int32)
        begins: dict[int, Places] = {}
        for left, _, group in self._groups(self.tokens[places], places):
            for right, count, both in self._groups(self.tokens[group + 1], group):
                self.counts[left << _ID_BITS | right] = count
                begins[left << _ID_BITS | right] = both
        return begins

    def merge(self, pair: int, new: int, places: Places) -> dict[int, Places]:
        """Make `pair` the token `new` wherever it still begins at one of `places` (ascending).

        Returns the pairs that this has made, with their places.
        """
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
        sums = np.cumsum(halves)
        return np.asarray(np.diff(sums[ends]) // 2)

    def _merge_few(self, left: int, right: int, new: int, places: Places) -> dict[int, Places]:
        token, length, counts = self._token, self._length, self.counts
        to_right, to_end = length[left], length[new]
        begins: defaultdict[int, list[int]] = defaultdict(list)
        room = self._limit - to_end
        then_right, then_new = right << _ID_BITS, new << _ID_BITS
        for start in places if isinstance(places, list) else places.tolist():
            middle, end = start + to_right, start + to_end
            if token[start] != left or token[middle] != right:
                continue
            weight, before, after = self._weight[start], token[start - 1], token[end]
            token[middle - 1] = token[middle] = _GONE
            token[start] = token[end - 1] = new
            if before >= 0:
                pair = before << _ID_BITS
                counts[pair | left] -= weight
                if length[before] < room:
                    counts[pair | new] += weight
                    begins[pair | new].append(start - length[before])
            if after >= 0:
                counts[then_right | after] -= weight
                if length[after] < room:
                    counts[then_new | after] += weight
                    begins[then_new | after].append(start)
        return cast("dict[int, Places]", begins)

    def _merge_many(
        self, left: int, right: int, new: int, places: NDArray[np.int32]
    ) -> dict[int, Places]:
        token, counts = self.tokens, self.counts
        to_right, to_end = self._length[left], self._length[new]
        starts = places[(token[places] == left) & (token[places + to_right] == right)]
        if left == right:
            starts = _every_other(starts, to_right)
        ends = starts + to_end
        before, after = token[starts - 1], token[ends]
        token[starts + (to_right - 1)] = token[starts + to_right] = _GONE
        token[starts] = token[ends - 1] = new

        begins: dict[int, Places] = {}
        touching = np.flatnonzero(starts[1:] == ends[:-1])  # the next occurrence follows at once
        if len(touching):
            count = int(self.weights[starts[touching]].sum())
            counts[right << _ID_BITS | left] -= count
            counts[new << _ID_BITS | left] += count  # the next loop will take it away
            before[touching + 1], after[touching] = new, SEPARATOR
        for other, count, group in self._groups(before, starts - self.lengths[before]):
            counts[other << _ID_BITS | left] -= count
            if self._length[other] + to_end < self._limit:
                counts[other << _ID_BITS | new] += count
                begins[other << _ID_BITS | new] = group
        for other, count, group in self._groups(after, starts):
            counts[right << _ID_BITS | other] -= count
            if self._length[other] + to_end < self._limit:
                counts[new << _ID_BITS | other] += count
                begins[new << _ID_BITS | other] = group
        return begins

    def _groups(
        self, neighbours: NDArray[np.int32], places: NDArray[np.int32]
    ) -> Iterator[tuple[int, int, NDArray[np.int32]]]:
        """For each id among `neighbours` its weight and places, ascending; separators aside."""
        packed = neighbours.astype(np.int64) << _ID_BITS | places
        packed.sort()
        packed = packed[packed.searchsorted(0) :]
        if not len(packed):
            return
        ids, places = packed >> _ID_BITS, packed.astype(np.int32)
        is_first = np.ones(len(ids), bool)
        np.not_equal(ids[1:], ids[:-1], out=is_first[1:])
        at = is_first.nonzero()[0]
        weights = np.add.reduceat(self.weights[places], at).tolist()
        starts = at.tolist()
        ends = [*starts[1:], len(ids)]
        for other, weight, start, end in zip(ids[at].tolist(), weights, starts, ends, strict=True):
            yield other, weight, places[start:end]


def learn_merges(
    pieces: Pieces, tokens: list[str], limits: Limits, progress: Progress | None = None
) -> dict[tuple[int, int], int]:
    """Merge the most frequent pair until the vocabulary is full; new tokens go to `tokens`.

    Of equally frequent pairs that with the smaller left id is first, then the smaller right id. A
    pair's count is brought up to date only when it comes first in the queue.

    All occurrences of a pair are there when the younger of its tokens is made, in the merge of all
    occurrences of another pair. So each pair is queued once, and merged at most once.

    Returns:
        (left id, right id) → id of the two merged, by rank.
    """
    counts = pieces.counts
    queue: list[Queued] = [(-counts[pair], pair, at) for pair, at in pieces.count_pairs().items()]
    heapify(queue)
    ids = {token: number for number, token in enumerate(tokens)}
    merges: dict[int, int] = {}
    while queue and len(tokens) < limits.vocab_size:
        queued, pair, places = queue[0]
        if -queued != counts[pair]:
            heapreplace(queue, (-counts[pair], pair, places))
            continue
        if -queued < max(1, limits.min_frequency):
            break
        heappop(queue)
        token = tokens[pair >> _ID_BITS] + tokens[pair & _LOW]
        new = ids.setdefault(token, len(tokens))  # a special token may have the same characters
        if new == len(tokens):
            tokens.append(token)
        merges[pair] = new
        for made, begins in pieces.merge(pair, new, places).items():
            if (count := counts[made]) > 0:
                heappush(queue, (-count, made, begins))
        if progress:
            progress(len(tokens), limits.vocab_size)
    return {(pair >> _ID_BITS, pair & _LOW): new for pair, new in merges.items()}


def _every_other(starts: NDArray[np.int32], length: int) -> NDArray[np.int32]:
    """Of pairs that overlap, as the two "aa" in "aaa", every other, from the left."""
    firsts = np.flatnonzero(np.diff(starts, prepend=-1 - length) != length)
    runs = np.diff(firsts, append=len(starts))
    in_run = np.arange(len(starts)) - np.repeat(firsts, runs)
    kept: NDArray[np.int32] = starts[in_run % 2 == 0]
    return kept
