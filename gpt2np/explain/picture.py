"""Arrays as pictures: small PNG files, one pixel a number, inside the page.

A number is a colour's opacity, so that the same picture is right on a light and on a dark page:
blue above zero, orange below (a pair that all kinds of colour blindness tell apart).

Shape letters: n rows, m columns.
"""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BLUE, ORANGE = (31, 104, 199), (214, 103, 11)
_LEVELS = 127  # of opacity, for each of the two colours


def picture_url(array: Array, limit: float) -> str:
    """A data URL of the picture of array (n, m): ±limit, and beyond, are the full colours."""
    levels = np.rint(np.clip(array / (limit or 1), -1, 1) * _LEVELS).astype(np.int16)  # (n, m)
    data = base64.b64encode(_png((levels + _LEVELS).astype(np.uint8))).decode("ascii")
    return f"data:image/png;base64,{data}"


def picture(array: Array, limit: float, alt: str, attributes: str = "") -> str:
    """An img element of array (n, m); `alt` and `attributes` are markup."""
    rows, columns = array.shape
    url = picture_url(array, limit)
    size = f'width="{columns}" height="{rows}"'
    return f'<img src="{url}" {size} alt="{alt}" class="picture" {attributes}>'


def _png(levels: NDArray[np.uint8]) -> bytes:
    """levels (n, m), 0 … 254 → a PNG file with a palette (W3C PNG specification, section 11)."""
    rows, columns = levels.shape
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), levels], axis=1)  # filter 0 each
    header = struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)
    opacity = [round(255 * abs(i - _LEVELS) / _LEVELS) for i in range(2 * _LEVELS + 1)]
    palette = bytes(ORANGE) * _LEVELS + bytes(BLUE) * (_LEVELS + 1)
    chunks = (
        (b"IHDR", header),
        (b"PLTE", palette),
        (b"tRNS", bytes(opacity)),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
