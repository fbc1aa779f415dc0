"""Lines over steps as SVG, drawn with the page's own colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpt2np.explain.html import text
from gpt2np.explain.numbers import rounded

_WIDTH, _HEIGHT = 460, 240  # few units, so that the letters stay readable on a phone
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 8, 10, 26


@dataclass(frozen=True)
class Line:
    """A line of a chart: what it is, and its value at each step."""

    name: str
    values: Sequence[float]


def line_chart(
    lines: Sequence[Line], steps: Sequence[str], title: str, *, logarithmic: bool = False
) -> str:
    """Lines over the named steps. `logarithmic`: the scale is by powers of ten; 0 is left out."""
    ticks = _ticks(lines, logarithmic)
    scaled = math.log10 if logarithmic else float
    low, high = scaled(ticks[0]), scaled(ticks[-1])

    def x(step: int) -> float:
        return _LEFT + 6 + (_WIDTH - _LEFT - _RIGHT - 12) * step / max(1, len(steps) - 1)

    def y(value: float) -> float:
        share = (scaled(value) - low) / (high - low)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share

    points = [
        [(x(at), y(value)) for at, value in enumerate(line.values) if value > 0 or not logarithmic]
        for line in lines
    ]
    drawn = [
        *(_grid(tick, y(tick)) for tick in ticks),
        *(_step(name, x(at)) for at, name in enumerate(steps) if at % (-(-len(steps) // 14)) == 0),
        *(_drawn(number, each) for number, each in enumerate(points)),
    ]
    keys = "".join(
        f'<span class="key line{number}">{text(line.name)}</span>'
        for number, line in enumerate(lines)
    )
    return (
        f'<figure class="chart"><figcaption>{text(title)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{text(title)}">'
        f"{''.join(drawn)}</svg><p>{keys}</p></figure>"
    )


def _grid(tick: float, y: float) -> str:
    name = rounded(tick, "n") if tick >= 1 and tick == int(tick) else f"{tick:g}"
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{name}</text>'
    )


def _step(name: str, x: float) -> str:
    return f'<text x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{text(name)}</text>'


def _drawn(number: int, points: Sequence[tuple[float, float]]) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2"/>' for x, y in points)
    return f'<g class="line line{number}"><polyline points="{path}"/>{dots}</g>'


def _ticks(lines: Sequence[Line], logarithmic: bool) -> list[float]:
    """Round values for the grid, from below the lowest to above the highest."""
    values = [float(v) for line in lines for v in line.values if not logarithmic or v > 0]
    if logarithmic and not values:
        return [0.1, 1.0]  # there is nothing to draw, but a scale
    low, high = min(values, default=1.0), max([*values, 1e-12])
    if not logarithmic:
        step = next(s for s in _round_steps(high) if high / s <= 5)
        return [step * n for n in range(math.ceil(high / step) + 1)]
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 2)
    factors = (1, 2, 5) if len(powers) < 4 else (1,)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    first = max(at for at, tick in enumerate(ticks) if tick <= low or at == 0)
    last = max(first + 1, next(at for at, tick in enumerate(ticks) if tick >= high))
    every = -(-(last - first + 1) // 7)
    return [*ticks[first:last:every], ticks[last]]


def _round_steps(high: float) -> Sequence[float]:
    power = 10.0 ** math.floor(math.log10(high))
    return [power * factor for factor in (0.1, 0.2, 0.25, 0.5, 1, 2, 5)]
