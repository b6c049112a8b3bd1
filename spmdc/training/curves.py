"""The numbers of a run over time, as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from spmdc.pictures.svg import BY_ITSELF, element, lettered, rect

_WIDTH, _HEIGHT, _LEFT, _TOP, _LINE = 420, 150, 64, 28, 16
_MOST = 400
"""The most points of a curve: with more steps, each point is a mean of several."""


def curves(records: Sequence[Mapping[str, object]], names: Sequence[str]) -> str:
    """A panel for each name, below each other: the number by the step, as SVG."""
    parts: list[str] = []
    for i, name in enumerate(names):
        points = [(float(r["step"]), float(r[name])) for r in records if _is_number(r.get(name))]  # type: ignore[arg-type]
        if points:
            panel = _panel(name, _thinned(points))
            parts.append(f'<g transform="translate(0 {i * (_HEIGHT + _TOP + 2 * _LINE)})">{panel}</g>')
    width, height = _LEFT + _WIDTH + _LINE, max(1, len(names)) * (_HEIGHT + _TOP + 2 * _LINE)
    return element(", ".join(names), width, height, BY_ITSELF, *parts) + "\n"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    size = -(-len(points) // _MOST)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def _panel(name: str, points: Sequence[tuple[float, float]]) -> str:
    xs, ys = zip(*points, strict=True)
    low, high = min(ys), max(ys)
    across, up = max(xs) - min(xs) or 1.0, high - low or 1.0
    places = (
        f"{_LEFT + _WIDTH * (x - min(xs)) / across:.1f},{_TOP + _HEIGHT * (1 - (y - low) / up):.1f}" for x, y in points
    )
    below = _TOP + _HEIGHT
    return "".join(
        (
            rect(_LEFT, _TOP, _WIDTH, _HEIGHT, 'fill="none" stroke="currentColor" stroke-opacity="0.3"'),
            lettered(name, _LEFT, _TOP - 8, "start"),
            lettered(f"{high:.4g}", _LEFT - 6, _TOP + 8, "end"),
            lettered(f"{low:.4g}", _LEFT - 6, below, "end"),
            lettered(f"step {min(xs):.0f}", _LEFT, below + _LINE, "start"),
            lettered(f"{max(xs):.0f}", _LEFT + _WIDTH, below + _LINE, "end"),
            f'<polyline points="{" ".join(places)}" fill="none" stroke="#2a7ae2" stroke-width="1.5"/>',
        )
    )
