"""The loss curve of a training run, as SVG."""

from __future__ import annotations

from collections.abc import Sequence

from gpt2np.kernels.threads import even_slices

_WIDTH, _HEIGHT, _MARGIN = 640, 320, 48


def loss_curve(losses: Sequence[float], evaluations: Sequence[tuple[int, float]] = ()) -> str:
    """Return an SVG drawing of the loss of each step, and of the evaluations (step, loss).

    Of many steps, the curve shows the means of 200 spans. Losses are in nats per token.
    """
    spans = even_slices(len(losses), 200)
    training = [(span.stop, sum(losses[span]) / len(losses[span])) for span in spans]
    lines = [("training", "#4477aa", training), ("evaluation", "#cc6677", evaluations)]
    last, means = len(losses), [loss for *_, line in lines for _, loss in line]
    low, high = min(means), max(means)
    left, right, top, bottom = _MARGIN, _WIDTH - _MARGIN, _MARGIN, _HEIGHT - _MARGIN
    x_scale, y_scale = (right - left) / last, (top - bottom) / ((high - low) or 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12" text-anchor="end" role="img">',
        f"<title>Loss after {last:,.0f} steps: {training[-1][1]:.3f} nats per token</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#333"/>',
        f'<text x="{left}" y="{bottom + 18}">0</text>',
        f'<text x="{right}" y="{bottom + 18}">{last:,.0f} steps</text>',
        f'<text x="{left - 6}" y="{bottom}">{low:.2f}</text>',
        f'<text x="{left - 6}" y="{top + 4}">{high:.2f}</text>',
    ]
    for row, (name, color, line) in enumerate(lines):
        path = " ".join(
            f"{left + x_scale * step:.1f},{bottom + y_scale * (loss - low):.1f}"
            for step, loss in line
        )
        if path:
            label = f"{name} loss, nats per token"
            parts += [
                f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>',
                f'<text x="{right}" y="{top + 16 * row}" fill="{color}">{label}</text>',
            ]
    return "\n".join([*parts, "</svg>", ""])
