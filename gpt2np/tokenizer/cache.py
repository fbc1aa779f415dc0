"""A dictionary that computes what it doesn't know, and never grows beyond its bound."""

from __future__ import annotations

from _thread import allocate_lock  # threading.Lock, without importing threading
from collections.abc import Callable

_ENTRY_BYTES = 240  # a string, a tuple, and their place in an ever growing dictionary, all empty
_LONGEST_KEY = 256  # characters; what is longer hardly comes again


class BoundedCache(dict[str, tuple[int, ...]]):
    """Text → ids. `cache[text]` computes the ids at first sight; known ones cost one look-up in C.

    When the entries exceed `limit` bytes, all are dropped: simple, and the frequent ones are back
    at once. Threads may share a cache: at worst two compute the same entry.
    """

    def __init__(self, compute: Callable[[str], tuple[int, ...]], limit: int) -> None:
        super().__init__()
        self._compute = compute
        self._limit = limit
        self._lock = allocate_lock()
        self.bytes = 0

    def __missing__(self, text: str) -> tuple[int, ...]:
        ids = self._compute(text)
        if len(text) <= _LONGEST_KEY:
            size = _ENTRY_BYTES + 4 * len(text) + 8 * len(ids)
            with self._lock:
                self.bytes += size
                if self.bytes > self._limit:
                    self.clear()
                    self.bytes = size
                self[text] = ids
        return ids
