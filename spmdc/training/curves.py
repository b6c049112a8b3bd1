"""The numbers of a run over time, as a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from spmdc.pictures.svg import BY_ITSELF, element, lettered, rect

_WIDTH, _HEIGHT, _LEFT, _TOP, _LINE = 420, 150, 64, 28, 16
_MOST = 400
"""The most points of a curve: with more steps, each point is a mean of several."""


Range = tuple[float, float, float]
"""The least of some numbers, their mean, and the largest."""


def curves(records: Sequence[Mapping[str, object]], names: Sequence[str]) -> str:
    """A panel for each name, below each other, as SVG: the number by the step. The numbers of a tensor, such as the
    load of each expert, are a band around their mean."""
    parts: list[str] = []
    for i, name in enumerate(names):
        ranges = [(float(r["step"]), range_of(r.get(name))) for r in records]  # type: ignore[arg-type]
        points = [(step, found) for step, found in ranges if found is not None]
        if points:
            many = next((_count(r[name]) for r in reversed(records) if isinstance(r.get(name), list)), 1)
            title = f"{name}, from the least of {many:,} to the largest, and their mean" if many > 1 else name
            panel = _panel(title, _thinned(points))
            parts.append(f'<g transform="translate(0 {i * (_HEIGHT + _TOP + 2 * _LINE)})">{panel}</g>')
    width, height = _LEFT + _WIDTH + _LINE, max(1, len(names)) * (_HEIGHT + _TOP + 2 * _LINE)
    return element(", ".join(names), width, height, BY_ITSELF, *parts) + "\n"


def range_of(value: object) -> Range | None:
    """The range of the finite numbers in a metric, which is a number or lists of them. None if there is none."""
    found = list(_finite(value))
    return (min(found), math.fsum(found) / len(found), max(found)) if found else None


def _finite(value: object) -> Iterator[float]:
    if isinstance(value, list):
        for each in value:
            yield from _finite(each)
    elif isinstance(value, int | float) and math.isfinite(value):
        yield float(value)


def _count(value: object) -> int:
    return sum(map(_count, value)) if isinstance(value, list) else 1


def _thinned(points: Sequence[tuple[float, Range]]) -> list[tuple[float, Range]]:
    size = -(-len(points) // _MOST)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(group[-1][0], _mean([found for _, found in group])) for group in groups]


def _mean(ranges: Sequence[Range]) -> Range:
    low, mean, high = (math.fsum(numbers) / len(ranges) for numbers in zip(*ranges, strict=True))
    return low, mean, high


def _panel(title: str, points: Sequence[tuple[float, Range]]) -> str:
    xs, ranges = zip(*points, strict=True)
    lows, means, highs = zip(*ranges, strict=True)
    low, high = min(lows), max(highs)
    across, up = max(xs) - min(xs) or 1.0, high - low or 1.0

    def line(ys: Sequence[float]) -> list[str]:
        return [
            f"{_LEFT + _WIDTH * (x - min(xs)) / across:.1f},{_TOP + _HEIGHT * (1 - (y - low) / up):.1f}"
            for x, y in zip(xs, ys, strict=True)
        ]

    around = " ".join([*line(lows), *reversed(line(highs))])
    below = _TOP + _HEIGHT
    return "".join(
        (
            rect(_LEFT, _TOP, _WIDTH, _HEIGHT, 'fill="none" stroke="currentColor" stroke-opacity="0.3"'),
            lettered(title, _LEFT, _TOP - 8, "start"),
            lettered(f"{high:.4g}", _LEFT - 6, _TOP + 8, "end"),
            lettered(f"{low:.4g}", _LEFT - 6, below, "end"),
            lettered(f"step {min(xs):.0f}", _LEFT, below + _LINE, "start"),
            lettered(f"{max(xs):.0f}", _LEFT + _WIDTH, below + _LINE, "end"),
            f'<polygon points="{around}" fill="#2a7ae2" fill-opacity="0.2"/>' if lows != highs else "",
            f'<polyline points="{" ".join(line(means))}" fill="none" stroke="#2a7ae2" stroke-width="1.5"/>',
        )
    )
