"""Many sequences over time: they wait for room, run together, and leave when they have ended."""

from collections import deque
from collections.abc import Sequence

from gpt2np.generation.loop import decode_step
from gpt2np.generation.prompt import SharedPrompt
from gpt2np.generation.sequence import RunningSequence
from gpt2np.model import GPT2
from gpt2np.runtime.kv_cache import cache_nbytes


class Scheduler:
    """Steps through sequences that may join at any time; memory stays bounded.

        >>> scheduler = Scheduler(model)
        >>> scheduler.add(sequence)
        >>> while scheduler.busy:
        ...     for finished in scheduler.step():
        ...         print(finished.ids)

    First come, first served. It belongs to one thread.

    Attributes:
        running: the sequences that grow with each step.
        waiting: those that come next.
    """

    def __init__(self, model: GPT2, max_running: int = 16, cache_bytes: int = 1 << 30) -> None:
        """At most `max_running` at once, with at most `cache_bytes` of keys and values; or one.

        Those of draft models and of prompts that several share are counted. The room that ended
        sequences leave is kept for those that follow: up to three times as much can be resident.
        """
        self.running: list[RunningSequence] = []
        self.waiting: deque[RunningSequence] = deque()
        self._model = model
        self._max_running = max_running
        self._cache_bytes = cache_bytes

    @property
    def busy(self) -> bool:
        """Whether anything runs or waits."""
        return bool(self.running or self.waiting)

    @property
    def free(self) -> int:
        """How many more may run at once, as far as their number is concerned."""
        return max(0, self._max_running - len(self.running) - len(self.waiting))

    def add(self, sequence: RunningSequence) -> None:
        """Let a sequence run as soon as there is room."""
        self.waiting.append(sequence)

    def step(self) -> list[RunningSequence]:
        """One id or more for all that run; those that have ended, also by their owners' will.

        Their caches are let go.
        """
        self._admit()
        going = [sequence for sequence in self.running if sequence.finish_reason is None]
        if going:
            decode_step(self._model, _neighbours_together(going))
        ended = [sequence for sequence in self.running if sequence.finish_reason]
        self.running = [sequence for sequence in self.running if not sequence.finish_reason]
        for sequence in ended:
            sequence.cache = self._model.new_cache()
            sequence.speculation = None
        return ended

    def _admit(self) -> None:
        shared = {s.shared for s in (*self.running, *self.waiting) if s.shared and s.shared.begun}
        held = sum(map(self._bytes, self.running)) + sum(map(self._shared_bytes, shared))
        while self.waiting:
            candidate = self.waiting[0]
            held += self._bytes(candidate)
            if candidate.shared and candidate.shared not in shared:
                shared.add(candidate.shared)
                held += self._shared_bytes(candidate.shared)
            fits = len(self.running) < self._max_running and held <= self._cache_bytes
            if self.running and not fits:
                return
            self.running.append(self.waiting.popleft())

    def _bytes(self, sequence: RunningSequence) -> int:
        """What its keys and values may come to, and those of its draft."""
        length = len(sequence.prompt) + sequence.options.max_new_tokens
        draft = sequence.speculation.draft if sequence.speculation else None
        return _most_bytes(self._model, length) + (_most_bytes(draft.model, length) if draft else 0)

    def _shared_bytes(self, shared: SharedPrompt) -> int:
        return _most_bytes(self._model, shared.length)


def _neighbours_together(running: Sequence[RunningSequence]) -> list[RunningSequence]:
    """In the order of their slots in a store of keys and values, of which one may have come later.

    Only where they follow each other do they compute as one. Stores are in the order of `running`,
    so that a batch computes the same, to the bit, each time.
    """
    first: dict[int, int] = {}
    for place, sequence in enumerate(running):
        first.setdefault(id(sequence.cache.store), place)
    return sorted(running, key=lambda s: (first[id(s.cache.store)], s.cache.slot))


def _most_bytes(model: GPT2, length: int) -> int:
    """Bytes of the keys and values of so many tokens, as far as the context reaches."""
    return cache_nbytes(model.config, min(length, model.config.n_positions), model.dtype)
