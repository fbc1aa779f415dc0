"""Images of the page: arrays as PNG pictures, and line charts as SVG.

A picture has one pixel per number. Opacity shows the absolute value, to suit light and dark pages.
Positive numbers are blue, negative numbers orange: readers with any kind of color blindness can
distinguish these colors.

Shape letters: n rows, m columns.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt2np.explain.markup import escape, format_number
from gpt2np.kernels.array import Array

BLUE, ORANGE = (31, 104, 199), (214, 103, 11)
_LEVELS = 127  # levels of opacity for each of the two colors
_WIDTH, _HEIGHT = 460, 240  # small, so that letters stay readable on a phone
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 8, 10, 26


def picture(array: Array, limit: float, alt: str, attributes: str = "") -> str:
    """Show an array as an img element (see `picture_url`); `alt`, `attributes` are markup."""
    rows, columns = array.shape
    url = picture_url(array, limit)
    size = f'width="{columns}" height="{rows}"'
    return f'<img src="{url}" {size} alt="{alt}" class="picture" {attributes}>'


def picture_url(array: Array, limit: float) -> str:
    """Return a picture of an array (n, m) as a data URL; numbers beyond ±limit have full color."""
    levels = np.rint(np.clip(array / (limit or 1), -1, 1) * _LEVELS).astype(np.int16)  # (n, m)
    data = base64.b64encode(_png((levels + _LEVELS).astype(np.uint8))).decode("ascii")
    return f"data:image/png;base64,{data}"


def _png(levels: NDArray[np.uint8]) -> bytes:
    """Encode levels (n, m) from 0 to 254 as a PNG with a palette (W3C PNG, section 11)."""
    rows, columns = levels.shape
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), levels], axis=1)  # filter type 0
    header = struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)
    opacity = [round(255 * abs(i - _LEVELS) / _LEVELS) for i in range(2 * _LEVELS + 1)]
    palette = bytes(ORANGE) * _LEVELS + bytes(BLUE) * (_LEVELS + 1)
    pixels = zlib.compress(lines.tobytes(), 9)
    chunks = {b"IHDR": header, b"PLTE": palette, b"tRNS": bytes(opacity), b"IDAT": pixels}
    content = b"\x89PNG\r\n\x1a\n"
    for name, data in {**chunks, b"IEND": b""}.items():
        content += struct.pack(">I", len(data)) + name + data
        content += struct.pack(">I", zlib.crc32(name + data))
    return content


def strip(name: str, title: str, array: Array, row_names: str = "tokens") -> str:
    """Return the markup of a picture in which the reader can inspect each number of an array.

    The page's script finds the array (n, m) by `name`. `row_names` is "tokens" if the rows
    are tokens, "row" for a single row without a name.
    """
    limit = float(np.quantile(np.abs(array), 0.995)) or 1.0
    scale = f'full color at ±<span class="limit">{format_number(limit)}</span>'
    rows, columns = array.shape
    alt = f"{title}; {rows} rows of {columns} numbers"
    attributes = f'data-strip="{name}" data-rows="{row_names}" tabindex="0" style="--rows: {rows}"'
    return (
        f'<figure class="strip"><figcaption>{title} <span class="hint">'
        f"{rows} × {columns}; {scale}</span></figcaption>"
        f'{picture(array, limit, alt, attributes)}<output class="readout"></output></figure>'
    )


@dataclass(frozen=True)
class Line:
    """A line of a chart: its name, and a value for each step of the horizontal axis."""

    name: str
    values: Sequence[float]


def line_chart(
    lines: Sequence[Line], steps: Sequence[str], title: str, *, logarithmic: bool = False
) -> str:
    """Return a line chart with `steps` as labels of the horizontal axis.

    A logarithmic chart omits values that are not positive.
    """
    ticks = _ticks(lines, logarithmic)
    scale = math.log10 if logarithmic else float
    low, high = scale(ticks[0]), scale(ticks[-1])

    def x(step: int) -> float:
        return _LEFT + 6 + (_WIDTH - _LEFT - _RIGHT - 12) * step / max(1, len(steps) - 1)

    def y(value: float) -> float:
        share = (scale(value) - low) / (high - low)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share

    points = [
        [(x(i), y(value)) for i, value in enumerate(line.values) if value > 0 or not logarithmic]
        for line in lines
    ]
    label_step = -(-len(steps) // 14)
    shapes = [
        *(_grid_line(tick, y(tick)) for tick in ticks),
        *(
            f'<text x="{x(i):.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(steps[i])}</text>'
            for i in range(0, len(steps), label_step)
        ),
        *(_polyline(number, line) for number, line in enumerate(points)),
    ]
    keys = "".join(
        f'<span class="key line{number}">{escape(line.name)}</span>'
        for number, line in enumerate(lines)
    )
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{''.join(shapes)}</svg><p>{keys}</p></figure>"
    )


def _grid_line(tick: float, y: float) -> str:
    name = format_number(tick, "n") if tick >= 1 and tick == int(tick) else f"{tick:g}"
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{name}</text>'
    )


def _polyline(number: int, points: Sequence[tuple[float, float]]) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2"/>' for x, y in points)
    return f'<g class="line line{number}"><polyline points="{path}"/>{dots}</g>'


def _ticks(lines: Sequence[Line], logarithmic: bool) -> list[float]:
    """Return round values for grid lines; the lowest and highest enclose all values of `lines`."""
    values = [float(v) for line in lines for v in line.values if not logarithmic or v > 0]
    if logarithmic and not values:
        return [0.1, 1.0]  # an empty chart still has a scale
    low, high = min(values, default=1.0), max([*values, 1e-12])
    if not logarithmic:
        power = 10.0 ** math.floor(math.log10(high))
        steps = (power * factor for factor in (0.1, 0.2, 0.25, 0.5, 1, 2, 5))
        step = next(s for s in steps if high / s <= 5)
        return [step * n for n in range(math.ceil(high / step) + 1)]
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 2)
    factors = (1, 2, 5) if len(powers) < 4 else (1,)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    first = max(i for i, tick in enumerate(ticks) if tick <= low or i == 0)
    last = max(first + 1, next(i for i, tick in enumerate(ticks) if tick >= high))
    step_size = -(-(last - first + 1) // 7)
    return [*ticks[first:last:step_size], ticks[last]]
