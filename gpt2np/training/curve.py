"""The loss curve of a training run, as SVG."""

from __future__ import annotations

from collections.abc import Sequence

from gpt2np.kernels.threads import even_slices

_WIDTH, _HEIGHT, _MARGIN = 640, 320, 48
_COLORS = {"training": "#4477aa", "evaluation": "#cc6677"}


def loss_curve(losses: Sequence[float], evaluations: Sequence[tuple[int, float]] = ()) -> str:
    """Return an SVG drawing of the loss of each step, and of the evaluations (step, loss).

    Of many steps, the curve shows the means of 200 spans. Losses are in nats per token.
    """
    spans = even_slices(len(losses), 200)
    training = [(span.stop, sum(losses[span]) / len(losses[span])) for span in spans]
    lines = {"training": training, "evaluation": evaluations}
    last, means = len(losses), [loss for line in lines.values() for _, loss in line]
    low, high = min(means), max(means)

    def x(step: float) -> float:
        return _MARGIN + (_WIDTH - 2 * _MARGIN) * step / last

    def y(loss: float) -> float:
        return _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * (loss - low) / ((high - low) or 1)

    left, bottom = _MARGIN, _HEIGHT - _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12" role="img">',
        f"<title>Loss after {last:,.0f} steps: {training[-1][1]:.3f} nats per token</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<path d="M{left} {_MARGIN}V{bottom}H{_WIDTH - left}" fill="none" stroke="#333"/>',
        f'<text x="{left}" y="{bottom + 18}" text-anchor="middle">0</text>',
        f'<text x="{_WIDTH - left}" y="{bottom + 18}" text-anchor="end">{last:,.0f} steps</text>',
        f'<text x="{left - 6}" y="{bottom}" text-anchor="end">{low:.2f}</text>',
        f'<text x="{left - 6}" y="{_MARGIN + 4}" text-anchor="end">{high:.2f}</text>',
    ]
    for row, (name, line) in enumerate(lines.items()):
        if line:
            path = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in line)
            color, label_y = _COLORS[name], _MARGIN + 16 * row
            parts += [
                f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>',
                f'<text x="{_WIDTH - left}" y="{label_y}" fill="{color}" text-anchor="end">'
                f"{name} loss, nats per token</text>",
            ]
    return "\n".join([*parts, "</svg>", ""])
