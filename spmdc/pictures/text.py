"""Pictures of shardings for the terminal, as `jax.debug.visualize_array_sharding` draws them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spmdc.pictures.placement import Block, Placement
from spmdc.pictures.plane import Plane, axes_of, caption, numbers, panels_shown, place_name, span

_COLORS = (41, 42, 43, 44, 45, 46, 101, 102, 104, 47)
"""Background colours, as ANSI codes, on which black letters are readable."""
_MOST_ROWS, _MOST_COLUMNS, _FRAME = 10, 32, 3
"""The most rows and columns that are drawn, and the characters around each cell."""


@dataclass(frozen=True)
class _Cell:
    text: str
    color: int | None = None

    def padded(self, width: int, *, color: bool) -> str:
        text = f" {self.text.center(width)} "
        return f"\x1b[30;{self.color}m{text}\x1b[0m" if color and self.color is not None else text


def drawn(placement: Placement, *, color: bool, width: int) -> str:
    """A box for each block, with the ids of its devices; a `·` marks padding. If not all rows or columns fit, the first
    and the last are drawn."""
    plane = Plane.of(placement)
    lines = textwrap.wrap(caption(placement), width)
    axes = [(plane.rows, "down"), (plane.columns, "across")]
    lines += textwrap.wrap(", ".join(f"{axes_of(placement, dim)} {way}" for dim, way in axes if dim is not None), width)
    places, hidden = panels_shown(plane)
    for place in places:
        lines += [place_name(placement, place)] if place else []
        lines += _boxes(_fitting(plane, place, width), color=color)
    lines += [f"… and {hidden:,} more like these"] if hidden else []
    return "\n".join(lines)


def _boxes(cells: Sequence[Sequence[_Cell]], *, color: bool) -> Iterator[str]:
    widths = _widths(cells)
    rules = ["─" * (width + 2) for width in widths]
    yield f"┌{'┬'.join(rules)}┐"
    for i, row in enumerate(cells):
        if i:
            yield f"├{'┼'.join(rules)}┤"
        yield f"│{'│'.join(cell.padded(width, color=color) for cell, width in zip(row, widths, strict=True))}│"
    yield f"└{'┴'.join(rules)}┘"


def _widths(cells: Sequence[Sequence[_Cell]]) -> list[int]:
    return [max(len(cell.text) for cell in column) for column in zip(*cells, strict=True)]


def _fitting(plane: Plane, place: dict[int, int], width: int) -> list[list[_Cell]]:
    """The cells of a panel, with as many columns as fit."""
    for most in range(_MOST_COLUMNS, 3, -1):
        cells = _cells(plane, place, most)
        if sum(_widths(cells)) + _FRAME * len(cells[0]) < width:
            return cells
    return _cells(plane, place, 3)


def _cells(plane: Plane, place: dict[int, int], most: int) -> list[list[_Cell]]:
    placement = plane.placement
    rows, columns = plane.shown(plane.rows, _MOST_ROWS), plane.shown(plane.columns, most)
    cells = [[_label(placement, plane.columns, column) for column in columns]] if plane.columns is not None else []
    cells += [[_cell(plane, place, row, column) for column in columns] for row in rows]
    if plane.rows is None:
        return cells
    labels = [_Cell(""), *(_label(placement, plane.rows, row) for row in rows)]
    return [[label, *line] for label, line in zip(labels, cells, strict=True)]


def _label(placement: Placement, dim: int | None, part: int | None) -> _Cell:
    if dim is None or part is None:
        return _Cell("…")
    first, behind = placement.extent(dim, part)
    return _Cell(span(first, behind) + ("·" if behind - first < placement.shard[dim] else ""))


def _cell(plane: Plane, place: dict[int, int], row: int | None, column: int | None) -> _Cell:
    if row is None or column is None:
        return _Cell("…")
    block = plane.block(place, row, column)
    return _Cell(_held(block), _COLORS[block.devices[0] % len(_COLORS)])


def _held(block: Block) -> str:
    held = numbers(block.devices)
    return f"·{held}·" if block.is_padding else held
