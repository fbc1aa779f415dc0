"""What a text may be: which ids may come next, so that it still can become one that is wanted."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Constraint(Protocol):
    """A state of what has been generated; it never changes, so that it can be shared and kept."""

    @property
    def complete(self) -> bool:
        """Whether the text is one that is wanted and nothing can follow."""

    def allowed(self) -> NDArray[np.bool_]:
        """(V,): the ids that may come next; an end id, where the text may end here. Read-only."""

    def advance(self, token_id: int) -> Constraint:
        """The state after one more id; after an end id the same."""
