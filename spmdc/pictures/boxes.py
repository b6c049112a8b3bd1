"""The boxes of a tensor that move in a reshard: the tensor, cut wherever one of the two shardings cuts it."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from html import escape
from itertools import pairwise

from spmdc.pictures.placement import Block, Placement
from spmdc.pictures.plane import Plane, numbers, span
from spmdc.pictures.svg import color_of, element, lettered, rect, text_width

_MOST = 24
"""The most boxes along a dim that are drawn."""
_LEFT, _TOP, _LINE, _LEAST, _HIGH = 64, 40, 14, 30, 26
_STAYS = "stays"


def boxes(before: Placement, after: Placement) -> str:
    """An SVG element: each box in the colour of its old block, with its old and new owners, and the new blocks in thick
    lines. If the tensor is cut along more than two dims, index 0 of the others is drawn. Empty if there are too many
    boxes, or if the devices are not those of one mesh."""
    rows, columns = _drawn_dims(before, after)
    across, down = (_cuts(before, after, dim) for dim in (columns, rows))
    if max(len(across), len(down)) > _MOST + 1 or before.sharding.mesh.size != after.sharding.mesh.size:
        return ""
    cells = [[_Cell(before, after, {rows: y, columns: x}) for x in across[:-1]] for y in down[:-1]]
    width = max([_LEAST, *(text_width(cell.words) for line in cells for cell in line)])
    left = max([_LEFT, *(text_width(span(*ends)) for ends in pairwise(down))])
    parts = [lettered(span(*ends), left + width * (i + 0.5), _TOP - 6) for i, ends in enumerate(pairwise(across))]
    for i, ends in enumerate(pairwise(down) if rows is not None else []):
        parts.append(lettered(span(*ends), left - 6, _TOP + _HIGH * (i + 0.5) + 4, "end"))
    for i, line in enumerate(cells):
        for j, cell in enumerate(line):
            parts.append(cell.drawn(left + width * j, _TOP + _HIGH * i, width))
    for top, bottom in pairwise(_own_cuts(after, rows, down)):
        for first, last in pairwise(_own_cuts(after, columns, across)):
            size = width * (last - first), _HIGH * (bottom - top)
            style = 'fill="none" stroke="currentColor" stroke-width="2.5"'
            parts.append(rect(left + width * first, _TOP + _HIGH * top, *size, style))
    dims = "a scalar" if columns is None else f"dim {columns} →" if rows is None else f"dim {rows} ↓, dim {columns} →"
    words = f"{dims}; in a box who had it → who gets it; thick lines: what one device has then"
    w, h = max(left + width * (len(across) - 1) + 4, text_width(words)), _TOP + _HIGH * (len(down) - 1) + 2 * _LINE
    parts.append(lettered(words, 0, h - _LINE / 2, "start"))
    return element("boxes that move", w, h, *parts)


def _drawn_dims(before: Placement, after: Placement) -> tuple[int | None, int | None]:
    """The two dims that are drawn, as rows and as columns: those that are split before or after come first."""
    split = [d for d in range(len(before.shape)) if before.parts[d] > 1 or after.parts[d] > 1]
    if len(split) > 2:
        return split[-2], split[-1]
    plane = Plane.of(before if any(before.parts[d] > 1 for d in split[:1]) else after)
    drawn = sorted({*split, *[d for d in (plane.rows, plane.columns) if d is not None][: 2 - len(split)]})
    return (drawn[0] if len(drawn) > 1 else None), (drawn[-1] if drawn else None)


def _cuts(before: Placement, after: Placement, dim: int | None) -> list[int]:
    """Where boxes begin along a dim, and the end of the last."""
    if dim is None:
        return [0, 1]
    ends = (placement.extent(dim, part) for placement in (before, after) for part in range(placement.parts[dim]))
    return sorted({end for extent in ends for end in extent})


def _own_cuts(placement: Placement, dim: int | None, cuts: Sequence[int]) -> list[int]:
    """The numbers of those cuts that this placement has."""
    if dim is None:
        return [0, 1]
    ends = {end for part in range(placement.parts[dim]) for end in placement.extent(dim, part)}
    return [i for i, cut in enumerate(cuts) if cut in ends]


class _Cell:
    """A box that neither sharding cuts, by its first element along the drawn dims."""

    def __init__(self, before: Placement, after: Placement, first: dict[int | None, int]) -> None:
        self.before, (had, gets) = before, (_block_with(p, first) for p in (before, after))
        self.had, lacking = had, [d for d in gets.devices if d not in had.devices]
        self.words = f"{numbers(had.devices)} → {numbers(lacking)}" if lacking else _STAYS
        self.title = f"had by {numbers(had.devices)}, and then by {numbers(gets.devices)}"

    def drawn(self, x: float, y: float, width: float) -> str:
        style = f'fill="{color_of(self.before, self.had.index)}" stroke="currentColor" stroke-opacity="0.4"'
        words = lettered(self.words, x + width / 2, y + _HIGH / 2 + 4)
        return f"<g><title>{escape(self.title)}</title>{rect(x, y, width, _HIGH, style)}{words}</g>"


def _block_with(placement: Placement, element: dict[int | None, int]) -> Block:
    index: list[int] = []
    for dim, parts in enumerate(placement.parts):
        ends = [placement.extent(dim, part)[1] for part in range(parts)]
        index.append(bisect.bisect_right(ends, element.get(dim, 0)))
    return placement.block(index)
