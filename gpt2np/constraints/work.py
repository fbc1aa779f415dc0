"""The limit on the size of patterns, choices and schemas."""

from gpt2np.errors import InvalidArgumentError

MAX_WORK = 10_000_000
"""Units of work of one pattern: each takes about 50 ns or 10 bytes, so about 0.5 s and 100 MB."""


class PatternTooLargeError(InvalidArgumentError):
    """A pattern, a schema, or the choices are too large."""


class WorkCounter:
    """Counts the work on one pattern, in time or memory, up to MAX_WORK."""

    def __init__(self) -> None:
        self._n_units = 0

    def add(self, n_units: int) -> None:
        """Count `n_units` more. Raises PatternTooLargeError beyond MAX_WORK."""
        self._n_units += n_units
        if self._n_units > MAX_WORK:
            raise PatternTooLargeError(
                "the pattern, the choices or the schema are too large, with repetitions expanded; "
                "use smaller counts, fewer alternatives, or x{0,8000} in place of (x?){8000}"
            )
