"""Lines over steps as SVG, drawn with the page's own colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpt2np.explain.html import text
from gpt2np.explain.numbers import rounded

_WIDTH, _HEIGHT = 640, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 132, 14, 42


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
    low, high = ticks[0], ticks[-1]

    def x(step: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * step / max(1, len(steps) - 1)

    def y(value: float) -> float:
        share = (_scaled(value, logarithmic) - _scaled(low, logarithmic)) / (
            _scaled(high, logarithmic) - _scaled(low, logarithmic)
        )
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share

    grid = [
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick):.1f}" '
        f'y2="{y(tick):.1f}"/><text class="tick" x="{_LEFT - 7}" y="{y(tick) + 4:.1f}" '
        f'text-anchor="end">{_tick_name(tick)}</text>'
        for tick in ticks
    ]
    every = -(-len(steps) // 14)
    names = [
        f'<text class="tick" x="{x(at):.1f}" y="{_HEIGHT - _BOTTOM + 18}" '
        f'text-anchor="middle">{text(name)}</text>'
        for at, name in enumerate(steps)
        if at % every == 0
    ]
    points = [
        [(x(at), y(v)) for at, v in enumerate(line.values) if v > 0 or not logarithmic]
        for line in lines
    ]
    drawn = [_drawn(number, each) for number, each in enumerate(points)]
    ends = [(line.name, each[-1][1]) for line, each in zip(lines, points, strict=True) if each]
    labels = _labels(ends)
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{text(title)}"><title>{text(title)}</title>'
        f"{''.join(grid + names + drawn)}{labels}</svg>"
    )


def _scaled(value: float, logarithmic: bool) -> float:
    return math.log10(value) if logarithmic else value


def _drawn(number: int, points: Sequence[tuple[float, float]]) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4"/>' for x, y in points)
    return f'<g class="line line{number}"><polyline points="{path}"/>{dots}</g>'


def _labels(ends: Sequence[tuple[str, float]]) -> str:
    """The lines' names beside their ends, pushed apart where they would overlap."""
    placed: list[str] = []
    lowest = -math.inf
    for number in sorted(range(len(ends)), key=lambda at: ends[at][1]):
        name, y = ends[number]
        lowest = max(y + 4, lowest + 15)
        placed.append(
            f'<text class="name line{number}" x="{_WIDTH - _RIGHT + 9}" y="{lowest:.1f}">'
            f"{text(name)}</text>"
        )
    return "".join(placed)


def _ticks(lines: Sequence[Line], logarithmic: bool) -> list[float]:
    """Round values for the grid, from below the lowest to above the highest."""
    values = [float(v) for line in lines for v in line.values if not logarithmic or v > 0]
    low, high = min(values, default=1.0), max([*values, 1e-12])
    if not logarithmic:
        step = next(s for s in _round_steps(high) if high / s <= 5)
        return [step * n for n in range(math.ceil(high / step) + 1)]
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 2)
    factors = (1, 2, 5) if len(powers) < 4 else (1,)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    first = max(at for at, tick in enumerate(ticks) if tick <= low or at == 0)
    last = next(at for at, tick in enumerate(ticks) if tick >= high)
    chosen = ticks[first : max(last, first + 1) + 1]
    every = -(-len(chosen) // 7)
    return chosen[::every] if (len(chosen) - 1) % every == 0 else [*chosen[::every], chosen[-1]]


def _round_steps(high: float) -> Sequence[float]:
    power = 10.0 ** math.floor(math.log10(high))
    return [power * f for f in (0.1, 0.2, 0.25, 0.5, 1, 2, 5)]


def _tick_name(value: float) -> str:
    return rounded(value, "n") if value >= 1 and value == int(value) else f"{value:g}"
