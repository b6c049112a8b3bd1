"""Pictures of shardings as SVG: the tensor, cut into blocks, and the mesh, with each device in the colour of its block.

Lines and letters have the colour of the surrounding text, and fills are translucent, so pictures are readable on light
and dark pages, and in print. The tooltip of a block has its elements and its devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from spmdc.pictures.placement import Block, Placement
from spmdc.pictures.plane import Plane, axes_of, caption, numbers, panels_shown, place_name, span

_MOST, _MOST_IN_ROW = 12, 4
"""The most rows and columns that are drawn, and the most panels side by side."""
_TENSOR, _CELL, _LEAST, _DEVICE = 280, 64, 26, 30
"""Sizes in pixels: the largest tensor, the largest and smallest width and height of a cell, and that of a device."""
_LEFT, _TOP, _GAP, _LINE = 64, 40, 24, 14
FONT = 'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="11"'


def picture(placement: Placement, title: str) -> str:
    """The tensor and the mesh beside it, as one SVG element. Of many blocks or devices the first and last are drawn."""
    plane = Plane.of(placement)
    panels, hidden = panels_shown(plane)
    parts: list[str] = []
    right = below = x = y = 0
    for i, place in enumerate(panels):
        if i and i % _MOST_IN_ROW == 0:
            x, y = 0, below
        drawing, width, height = _tensor(plane, place)
        parts.append(f'<g transform="translate({x} {y})">{drawing}</g>')
        x, below = x + width + _GAP, max(below, y + height + _GAP)
        right = max(right, x)
    drawing, width, height = _mesh(placement)
    parts.append(f'<g transform="translate({right} 0)">{drawing}</g>')
    right, below = right + width, max(below, height)
    words = [f"{title}: {caption(placement)}" if title else caption(placement)]
    words += [f"{hidden:,} more parts are not drawn"] if hidden else []
    for word in words:
        parts.append(lettered(word, 0, below + _LINE, "start"))
        below += _LINE + 4
    width = max(right, *map(text_width, words))
    return element(words[0], width, below + 4, _HATCH, *parts)


def element(label: str, width: float, height: float, *parts: str) -> str:
    """An SVG element of that size, made of these parts; the label is for those who cannot see it."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(label, quote=True)}" '
        f'width="{width}" height="{height}" viewBox="0 0 {width} {height}" {FONT} fill="currentColor">'
        f"{''.join(parts)}</svg>"
    )


def standalone(drawing: str) -> str:
    """A picture as a file of its own, without surrounding text to take the colour from."""
    return drawing.replace(_HATCH, BY_ITSELF + _HATCH, 1)


BY_ITSELF = "<style>:root{color:black}@media (prefers-color-scheme:dark){:root{color:white}}</style>"
"""The style of a picture that is a file of its own: lines and letters are black on light pages, white on dark ones."""
_HATCH = (
    '<defs><pattern id="padding" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path d="M0 0V6" stroke="currentColor" stroke-opacity="0.5"/></pattern></defs>'
)


def _tensor(plane: Plane, place: dict[int, int]) -> tuple[str, int, int]:
    """A panel, its width and its height."""
    placement = plane.placement
    rows, columns = plane.shown(plane.rows, _MOST), plane.shown(plane.columns, _MOST)
    labels = ["…" if c is None else _label(placement, plane.columns, c) for c in columns]
    width = _side(placement, plane.columns, len(columns), max(map(len, labels)))
    height = _side(placement, plane.rows, len(rows))
    names = ["…" if r is None else _label(placement, plane.rows, r) for r in rows]
    first = max(_LEFT, *map(text_width, names))
    parts = [lettered(place_name(placement, place), first, _LINE, "start")] if place else []
    axes = [axes_of(placement, dim) for dim in (plane.rows, plane.columns) if dim is not None]
    legend = " ↓, ".join(axes) + " →" if axes else "a scalar"
    parts.append(lettered(legend, 0, _TOP + height * len(rows) + _LINE, "start"))
    for j, label in enumerate(labels):
        parts.append(lettered(label, first + width * (j + 0.5), _TOP - 6))
    for i, row in enumerate(rows):
        top = _TOP + height * i
        parts.append(lettered(names[i], first - 6, top + height / 2 + 4, "end"))
        for j, column in enumerate(columns):
            left = first + width * j
            if row is None or column is None:
                parts.append(lettered("…", left + width / 2, top + height / 2 + 4))
            else:
                parts += _block(plane, plane.block(place, row, column), left, top, width, height)
    wide = max(first + width * len(columns), text_width(legend))
    return "".join(parts), wide, _TOP + height * len(rows) + 2 * _LINE


def _side(placement: Placement, dim: int | None, drawn: int, letters: int = 0) -> int:
    """The width or height of a cell: larger for a dim with more elements, and for a text beside it."""
    if dim is None:
        return _CELL // 2
    growing = _LEAST + 8 * math.log2(1 + placement.shard[dim])
    return int(max(_LEAST, min(growing, _CELL, _TENSOR / drawn), text_width("0" * letters)))


def text_width(text: str) -> int:
    """The width of a text, with a margin."""
    return 7 * len(text) + 6


def _label(placement: Placement, dim: int | None, part: int) -> str:
    return "" if dim is None else span(*placement.extent(dim, part))


def _block(plane: Plane, block: Block, left: int, top: int, width: int, height: int) -> Iterator[str]:
    """The cell of a block: its elements in its colour, padding hatched after them, the devices in the middle."""
    placement = plane.placement
    part_of = (
        1.0 if dim is None else (block.stop[dim] - block.start[dim]) / max(1, placement.shard[dim])
        for dim in (plane.columns, plane.rows)
    )
    wide, high = (side * part for side, part in zip((width, height), part_of, strict=True))
    elements = " × ".join(map(span, block.start, block.stop))
    held = numbers(block.devices)
    yield f"<g><title>[{elements}] on device{'s' if len(block.devices) > 1 else ''} {held}</title>"
    yield rect(left, top, wide, high, f'fill="{color_of(placement, block.index)}"')
    yield rect(left + wide, top, width - wide, height, 'fill="url(#padding)"')
    yield rect(left, top + high, wide, height - high, 'fill="url(#padding)"')
    yield rect(left, top, width, height, 'fill="none" stroke="currentColor"')
    short = held if text_width(held) <= width + 6 else f"{len(block.devices):,}×" if len(block.devices) > 1 else "·"
    yield lettered(short, left + width / 2, top + height / 2 + 4) + "</g>"


def _mesh(placement: Placement) -> tuple[str, int, int]:
    """The devices in rows along the last axis of the mesh, each in the colour of its block; its width and height."""
    mesh = placement.sharding.mesh
    along = mesh.shape[-1] if mesh.axes else 1
    side = max(_DEVICE, text_width(str(mesh.size - 1)))
    columns, rows = _some(along), _some(mesh.size // max(1, along))
    parts: list[str] = []
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            x, y = side * j, _TOP + _DEVICE * i
            if row is None or column is None:
                parts.append(lettered("…", x + side / 2, y + _DEVICE / 2 + 4))
                continue
            position = row * along + column
            index = placement.index_at(position)
            device = position if mesh.devices is None else mesh.devices[position]
            parts.append(rect(x, y, side, _DEVICE, f'fill="{color_of(placement, index)}" stroke="currentColor"'))
            parts.append(lettered(f"{device}", x + side / 2, y + _DEVICE / 2 + 4))
    height = _TOP + _DEVICE * len(rows) + 2 * _LINE
    parts.append(lettered(f"mesh ({mesh})", 0, height - _LINE, "start"))
    return "".join(parts), max(side * len(columns), text_width(f"mesh ({mesh})")), height


def _some(n: int) -> Sequence[int | None]:
    """All numbers below n; if there are many, the first and the last, with None between them."""
    return range(n) if n <= _MOST else [*range(_MOST - 2), None, n - 1]


def color_of(placement: Placement, index: Sequence[int]) -> str:
    """The colour of a block."""
    return hue(placement.number_of(index))


def hue(number: int) -> str:
    """The hue of a number. Consecutive hues differ by the golden angle, so that neighbours differ much."""
    return f"hsl({number * 137.5 % 360:.0f} 70% 55% / 0.45)"


def rect(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" {style}/>'


def lettered(text: str, x: float, y: float, anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'
