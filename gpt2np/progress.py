"""Progress bars of the library: at a terminal and in Jupyter, for work that takes over a second."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing takes longer than this module
if TYPE_CHECKING:
    from typing import Any

    from tqdm import tqdm


def progress_bar(
    total: int, description: str, unit: str, progress: bool | None = None
) -> tqdm[Any]:
    """Return a progress bar on stderr, which is a context manager.

    With `progress` None, the bar is shown if stderr is a terminal or the program runs in Jupyter.
    True shows the bar at once, and False never.
    """
    from tqdm import tqdm

    is_visible = sys.stderr.isatty() or "ipykernel" in sys.modules if progress is None else progress
    delay = 1.0 if progress is None else 0.0  # seconds
    return tqdm(
        total=total, desc=description, unit=unit, leave=False, disable=not is_visible, delay=delay
    )
