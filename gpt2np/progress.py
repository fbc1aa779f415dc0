"""Progress bars at a terminal and in Jupyter, for work that takes over a second."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing takes longer than this module
if TYPE_CHECKING:
    from typing import Any

    from tqdm import tqdm


def progress_bar(
    total: int, description: str, unit: str, progress: bool | None = None
) -> tqdm[Any]:
    """Return a progress bar on stderr, to use as a context manager.

    `progress` True shows the bar at once, and False never. None shows the bar after a second, at a
    terminal or in Jupyter.
    """
    from tqdm import tqdm  # required by huggingface_hub

    is_visible = sys.stderr.isatty() or "ipykernel" in sys.modules if progress is None else progress
    delay = 1.0 if progress is None else 0.0  # seconds
    return tqdm(
        total=total, desc=description, unit=unit, leave=False, disable=not is_visible, delay=delay
    )
