"""Progress bars at a terminal and in Jupyter, for work that takes over a second."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from gpt2np.errors import check_argument

TYPE_CHECKING = False  # importing typing takes longer than this module
if TYPE_CHECKING:
    from typing import Any

    from tqdm import tqdm


@dataclass
class HiddenBar:
    """Stands for a progress bar that is not shown, because importing tqdm takes 40 ms."""

    n: float = 0

    def update(self, n: float) -> None:
        """Count n more."""
        self.n += n

    def __enter__(self) -> HiddenBar:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


def progress_bar(
    total: int | None, description: str, unit: str, progress: bool | None = None
) -> tqdm[Any] | HiddenBar:
    """Return a progress bar on stderr, to use as a context manager.

    `progress` True shows the bar at once, and False never. None shows the bar after a second, at a
    terminal or in Jupyter. Large totals are shown as k or M. `total` is None if it is unknown.

    Raises:
        InvalidArgumentError: `progress` is neither True, False nor None.
    """
    check_argument(progress in (True, False, None), "progress", progress, "True, False or None")
    is_visible = sys.stderr.isatty() or "ipykernel" in sys.modules if progress is None else progress
    if not is_visible:
        return HiddenBar()
    from tqdm import tqdm  # required by huggingface_hub

    delay = 1.0 if progress is None else 0.0  # seconds
    is_large = total is None or total >= 100_000
    return tqdm(
        total=total, desc=description, unit=unit, unit_scale=is_large, leave=False, delay=delay
    )
