"""Learning of merges: repeatedly, the most frequent pair of neighboring tokens becomes a token.

One array holds the tokens of all pieces. A token has one position per symbol (byte or character),
and its id is stored at the first and the last of these positions. So neighbors are found without
links: the ids next to a token's two ends are those of the previous and the next token. A merge
writes a few numbers per occurrence, and changes only the counts of neighboring pairs.

    position  0  1  2  3  4  5  6  7
    "banana"     b  a  n  a  n  a          (positions 0 and 7: separators)
    X = a + n    b  X  X  X  X  a
    Y = X + a    b  X  X  Y  ·  Y          (·: inside a token)

Sources: Sennrich et al. 2016, section 3.2; for the queue of pairs with positions, `tokenizers`,
models/bpe/trainer.rs.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from gpt2np.tokenizer.training_options import TrainingOptions

SEPARATOR = -1  # at a position between two pieces
_INSIDE = -2  # at a position of a token that is neither the first nor the last

_UNLIMITED = 1 << 62  # symbols of a token
_SMALL_MERGE = 64  # up to this many occurrences, a Python loop is faster than NumPy calls
_ID_BITS = 32
_ID_MASK = (1 << _ID_BITS) - 1

Positions = list[int] | NDArray[np.int32]
# (-count, pair, positions of the pair). No pair is queued twice, so positions are never compared.
QueueEntry = tuple[int, int, Positions]
Progress = Callable[[int, int], object]


class PieceArray:
    """All pieces of a corpus in one array, in which pairs of neighboring tokens are merged.

    Each symbol (byte or character) of a piece and each separator of pieces has one of N positions.
    A token's id is stored at the token's first and last position. A pair is one integer:
    left id << 32 | right id. As in `tokenizers`, merging a pair doesn't reset the pair's count, and
    new pairs whose merged token would be too long are not counted.

    Attributes:
        tokens: token id at each position; SEPARATOR before, between and after the pieces. (N,)
        weights: for each position, how often its piece occurs in the corpus. (N,)
        lengths: number of symbols in each token, by token id. (maximum number of ids + 1,)
        counts: number of occurrences of each pair.
    """

    def __init__(
        self,
        tokens: NDArray[np.int32],
        weights: NDArray[np.int64],
        options: TrainingOptions,
        n_ids: int,
    ) -> None:
        self.tokens, self.weights = tokens, weights
        max_ids = n_ids + len(tokens)  # each merge removes at least one token
        self.lengths = np.ones(max(n_ids, min(options.vocab_size, max_ids)) + 1, np.int32)
        self.counts: defaultdict[int, int] = defaultdict(int)
        self._max_length = options.max_token_length or _UNLIMITED
        # Indexing a memoryview returns Python numbers, several times faster than indexing an array.
        self._token, self._weight = tokens.data, weights.data
        self._length = self.lengths.data

    def count_pairs(self) -> dict[int, Positions]:
        """Count all pairs of neighboring tokens; return the positions of each pair."""
        is_pair = (self.tokens[:-1] >= 0) & (self.tokens[1:] >= 0)
        positions = np.flatnonzero(is_pair).astype(np.int32)
        pair_positions: dict[int, Positions] = {}
        for left, _, group in self._group_by_id(self.tokens[positions], positions):
            for right, count, starts in self._group_by_id(self.tokens[group + 1], group):
                self.counts[left << _ID_BITS | right] = count
                pair_positions[left << _ID_BITS | right] = starts
        return pair_positions

    def merge(self, pair: int, new: int, positions: Positions) -> dict[int, Positions]:
        """Replace `pair` by the token `new`; return the positions of each new pair.

        `positions`, in ascending order, include all positions of the pair. Positions where an
        earlier merge has changed the pair are skipped.
        """
        left, right = pair >> _ID_BITS, pair & _ID_MASK
        self._length[new] = self._length[left] + self._length[right]
        if len(positions) > _SMALL_MERGE:
            return self._merge_by_numpy(left, right, new, np.asarray(positions, np.int32))
        return self._merge_by_loop(left, right, new, positions)

    def tokens_per_piece(self) -> NDArray[np.int64]:
        """Count the tokens of each piece. Returns an array of shape (number of pieces,)."""
        ends = np.flatnonzero(self.tokens == SEPARATOR)
        # Count half tokens: a token's id is stored at two positions if the token has several.
        halves = np.where(self.tokens < 0, 0, np.where(self.lengths[self.tokens] == 1, 2, 1))
        sums = np.cumsum(halves)
        return np.asarray(np.diff(sums[ends]) // 2)

    def _merge_by_loop(
        self, left: int, right: int, new: int, positions: Positions
    ) -> dict[int, Positions]:
        token, length, counts = self._token, self._length, self.counts
        left_length, new_length = length[left], length[new]
        new_pairs: defaultdict[int, list[int]] = defaultdict(list)
        max_neighbor = self._max_length - new_length
        right_high, new_high = right << _ID_BITS, new << _ID_BITS
        for start in positions if isinstance(positions, list) else positions.tolist():
            middle, end = start + left_length, start + new_length
            if token[start] != left or token[middle] != right:
                continue
            weight, before, after = self._weight[start], token[start - 1], token[end]
            token[middle - 1] = token[middle] = _INSIDE
            token[start] = token[end - 1] = new
            if before >= 0:
                before_high = before << _ID_BITS
                counts[before_high | left] -= weight
                if length[before] < max_neighbor:
                    counts[before_high | new] += weight
                    new_pairs[before_high | new].append(start - length[before])
            if after >= 0:
                counts[right_high | after] -= weight
                if length[after] < max_neighbor:
                    counts[new_high | after] += weight
                    new_pairs[new_high | after].append(start)
        return cast("dict[int, Positions]", new_pairs)

    def _merge_by_numpy(
        self, left: int, right: int, new: int, positions: NDArray[np.int32]
    ) -> dict[int, Positions]:
        token, counts = self.tokens, self.counts
        left_length, new_length = self._length[left], self._length[new]
        is_current = (token[positions] == left) & (token[positions + left_length] == right)
        starts = positions[is_current]
        if left == right:
            starts = _drop_overlaps(starts, left_length)
        ends = starts + new_length
        before, after = token[starts - 1], token[ends]
        token[starts + (left_length - 1)] = token[starts + left_length] = _INSIDE
        token[starts] = token[ends - 1] = new

        new_pairs: dict[int, Positions] = {}
        adjacent = np.flatnonzero(starts[1:] == ends[:-1])  # two occurrences in a row
        if len(adjacent):
            count = int(self.weights[starts[adjacent]].sum())
            counts[right << _ID_BITS | left] -= count
            counts[new << _ID_BITS | left] += count  # the next loop subtracts this count
            before[adjacent + 1], after[adjacent] = new, SEPARATOR
        for neighbor, count, group in self._group_by_id(before, starts - self.lengths[before]):
            counts[neighbor << _ID_BITS | left] -= count
            if self._length[neighbor] + new_length < self._max_length:
                counts[neighbor << _ID_BITS | new] += count
                new_pairs[neighbor << _ID_BITS | new] = group
        for neighbor, count, group in self._group_by_id(after, starts):
            counts[right << _ID_BITS | neighbor] -= count
            if self._length[neighbor] + new_length < self._max_length:
                counts[new << _ID_BITS | neighbor] += count
                new_pairs[new << _ID_BITS | neighbor] = group
        return new_pairs

    def _group_by_id(
        self, ids: NDArray[np.int32], positions: NDArray[np.int32]
    ) -> Iterator[tuple[int, int, NDArray[np.int32]]]:
        """Group `positions` by token id; yield (id, total weight, positions) of non-separators."""
        packed = ids.astype(np.int64) << _ID_BITS | positions
        packed.sort()
        packed = packed[packed.searchsorted(0) :]
        if not len(packed):
            return
        sorted_ids, positions = packed >> _ID_BITS, packed.astype(np.int32)
        is_first = np.ones(len(packed), bool)
        np.not_equal(sorted_ids[1:], sorted_ids[:-1], out=is_first[1:])
        firsts = is_first.nonzero()[0]
        weights = np.add.reduceat(self.weights[positions], firsts).tolist()
        starts = firsts.tolist()
        ends = [*starts[1:], len(packed)]
        unique_ids = sorted_ids[firsts].tolist()
        for token_id, weight, start, end in zip(unique_ids, weights, starts, ends, strict=True):
            yield token_id, weight, positions[start:end]


def learn_merges(
    pieces: PieceArray,
    tokens: list[str],
    options: TrainingOptions,
    on_progress: Progress | None = None,
) -> dict[tuple[int, int], int]:
    """Merge the most frequent pair up to a limit of `options`; append the tokens to `tokens`.

    Equally frequent pairs are merged in order of their left id, then of their right id. Returns a
    dictionary from (left id, right id) to the id of the merged token, ordered by rank.

    All occurrences of a pair appear at once, when the newer of the pair's tokens is created. So
    each pair is queued once. The queue's counts are updated lazily, at the head of the queue.
    """
    counts = pieces.counts
    queue: list[QueueEntry] = [
        (-counts[pair], pair, positions) for pair, positions in pieces.count_pairs().items()
    ]
    heapify(queue)
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    merges: dict[int, int] = {}
    while queue and len(tokens) < options.vocab_size:
        queued, pair, positions = queue[0]
        if -queued != counts[pair]:
            heapreplace(queue, (-counts[pair], pair, positions))
            continue
        if -queued < max(1, options.min_frequency):
            break
        heappop(queue)
        token = tokens[pair >> _ID_BITS] + tokens[pair & _ID_MASK]
        new = ids.setdefault(token, len(tokens))  # a special token may have the same text
        if new == len(tokens):
            tokens.append(token)
        merges[pair] = new
        for new_pair, new_positions in pieces.merge(pair, new, positions).items():
            if (count := counts[new_pair]) > 0:
                heappush(queue, (-count, new_pair, new_positions))
        if on_progress:
            on_progress(len(tokens), options.vocab_size)
    return {(pair >> _ID_BITS, pair & _ID_MASK): new for pair, new in merges.items()}


def _drop_overlaps(starts: NDArray[np.int32], length: int) -> NDArray[np.int32]:
    """Drop each pair that starts `length` after a kept pair, as the second "aa" in "aaa"."""
    firsts = np.flatnonzero(np.diff(starts, prepend=-1 - length) != length)
    runs = np.diff(firsts, append=len(starts))
    index_in_run = np.arange(len(starts)) - np.repeat(firsts, runs)
    kept: NDArray[np.int32] = starts[index_in_run % 2 == 0]
    return kept
