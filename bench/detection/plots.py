"""Two small SVG pictures for the scoreboard, drawn without a plotting library."""

import math
from collections.abc import Mapping, Sequence

COLOURS = ("#c0392b", "#e67e22", "#1f6fb2", "#2e8b57")
WIDTH, HEIGHT, LEFT, BOTTOM = 640, 300, 60, 50


def line_chart(
    title: str, x_labels: Sequence[str], series: Mapping[str, Sequence[float | None]], unit: str
) -> str:
    """Return one line per series over labelled places, with gaps where a value is missing."""
    top = (
        max((v for values in series.values() for v in values if v is not None), default=1.0) or 1.0
    )
    step = (WIDTH - LEFT - 20) / max(len(x_labels) - 1, 1)
    parts = _frame(title, top, unit)
    for index, label in enumerate(x_labels):
        parts.append(_text(LEFT + index * step, HEIGHT - BOTTOM + 18, label, "middle"))
    for number, (name, values) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = [(LEFT + i * step, _y(v, top)) for i, v in enumerate(values) if v is not None]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        parts.append(_text(LEFT + 10 + 190 * number, HEIGHT - 8, f"● {name}", "start", colour))
    return _svg(parts)


def bar_chart(title: str, values: Mapping[str, float], unit: str) -> str:
    """Return bars on a logarithmic scale from 0.1: detectors differ by orders of magnitude."""
    top = math.log10(max(max(values.values(), default=1.0), 1.0)) + 1
    parts = _frame(title, None, unit)
    step = (WIDTH - LEFT - 20) / max(len(values), 1)
    for number, (name, value) in enumerate(values.items()):
        height = (math.log10(max(value, 0.1)) + 1) / (top + 0.2) * (HEIGHT - BOTTOM - 50)
        x, y = LEFT + number * step + step * 0.2, HEIGHT - BOTTOM - height
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{step * 0.6:.1f}" height="{height:.1f}" '
            f'fill="{COLOURS[number]}"/>'
        )
        parts.append(_text(x + step * 0.3, y - 6, f"{value:,.2f}", "middle"))
        parts.append(_text(x + step * 0.3, HEIGHT - BOTTOM + 18, name, "middle"))
    return _svg(parts)


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - value / top * (HEIGHT - BOTTOM - 40)


def _frame(title: str, top: float | None, unit: str) -> list[str]:
    parts = [_text(WIDTH / 2, 20, title, "middle"), _text(8, 36, unit, "start")]
    parts.append(
        f'<line x1="{LEFT}" y1="{HEIGHT - BOTTOM}" x2="{WIDTH - 10}" y2="{HEIGHT - BOTTOM}" '
        'stroke="#888"/>'
    )
    if top is not None:
        for share in (0, 0.25, 0.5, 0.75, 1):
            y = _y(share * top, top)
            parts.append(
                f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - 10}" y2="{y:.1f}" stroke="#ddd"/>'
            )
            parts.append(_text(LEFT - 6, y + 4, f"{share * top:.3g}", "end"))
    return parts


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#333") -> str:
    safe = text.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{safe}</text>'


def _svg(parts: Sequence[str]) -> str:
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>'
    return (
        "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>"]) + "\n"
    )
