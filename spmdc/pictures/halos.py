"""Halo exchanges as pictures: which elements along a dim each device has, and which it gets from whom.

What an exchange moves is found by running its ops, on elements that say where they are from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np

from ir.causes import Cause
from ir.mesh import Mesh
from ir.ops import OPS
from ir.program import Op, Program, Region, Result, Value
from ir.types import Array
from lowering.reference.interpreter import execute
from lowering.reference.mesh_dims import grids_of
from lowering.reference.poison import zeros
from spmdc.pictures.plane import span
from spmdc.pictures.svg import element, hue, lettered, rect, text_width

_MOST_DEVICES, _MOST_ELEMENTS = 16, 1 << 20
_FIRST = 1 << 10
"""The number of the first element: larger than any fill value, and small enough that the last element's number is
exact."""
_LEFT, _TOP, _ROW, _LINE, _WIDTH = 72, 26, 22, 16, 560


@dataclass(frozen=True)
class Halo:
    """The permutes of one exchange, in the entry of an SPMD program."""

    program: Program
    cause: Cause
    permutes: tuple[Op, ...]

    @property
    def title(self) -> str:
        """The op that the exchange is for."""
        return str(self.cause)

    def svg(self) -> str:
        """A line for each device; empty if there are too many, or if the data that is sent depends on more than the
        exchanged value."""
        found = self._received
        if found is None:
            return ""
        dim, shard, rows = found.dim, found.shard, found.rows
        scale = _WIDTH / (len(rows) * shard)
        parts = [lettered(span(i * shard, (i + 1) * shard), _LEFT + scale * shard * (i + 0.5), _TOP - 8)
                 for i in range(len(rows))]  # fmt: skip
        for i, (device, got) in enumerate(rows):
            top = _TOP + _ROW * i
            parts.append(lettered(f"device {device}", _LEFT - 6, top + _ROW / 2 + 3, "end"))
            parts.append(_stretch(i, i * shard, (i + 1) * shard, top, scale, f"device {device} has", 1.0))
            for owner, first, behind in got:
                parts.append(_stretch(owner, first, behind, top + 3, scale, f"device {device} gets", 2.5))
        words = f"dim {dim}: what a device has, and in thick lines what it gets, in the colour of who has that"
        width, height = max(_LEFT + _WIDTH + 8, text_width(words)), _TOP + _ROW * len(rows) + _LINE + 8
        parts.append(lettered(words, 0, height - 6, "start"))
        return element(self.title, width, height, *parts)

    @cached_property
    def _received(self) -> _Received | None:
        cause, mesh = self.cause, self.program.mesh
        value = next((v for v in _values(self.program) if v.name == cause.values[0]), None)
        if value is None or any(name not in mesh.names for name in cause.axes):
            return None
        ops = _between(self.program, value, self.permutes)
        if ops is None or mesh.size * value.type.size > _MOST_ELEMENTS or not _holds_numbers(value):
            return None
        results = tuple(v for op in self.permutes for v in op.results)
        declared = tuple(Result(v.name, v.type) for v in results)
        function = replace(self.program.main, body=Region((value,), ops, results), results=declared)
        alone = replace(self.program, functions={self.program.entry: function}, weights={})
        grids = grids_of(alone)
        numbers = np.arange(_FIRST, _FIRST + mesh.size * value.type.size).astype(value.dtype.numpy)
        given = numbers.reshape(*grids.default.shape, *value.shape)
        outputs = [_by_device(x, grids.default.shape) for x in execute(alone, [given], grids, zeros)]
        return _along(mesh, value, cause.axes, np.concatenate(outputs, axis=1))


@dataclass(frozen=True)
class _Received:
    """The dim along which elements are exchanged, the number of elements of it on a device, and for each device along
    the axes its id and what it receives: the owner, by position along the axes, and the ends of a run of elements."""

    dim: int
    shard: int
    rows: list[tuple[int, list[tuple[int, int, int]]]]


def halos(program: Program) -> list[Halo]:
    """The halo exchanges in the entry of an SPMD program, outside of its loops, in order."""
    found: dict[Cause, list[Op]] = {}
    for op in program.main.body.ops:
        cause = _sent_for(op) if OPS[op.name].communication is not None else None
        if cause is not None:
            found.setdefault(cause, []).append(op)
    return [Halo(program, cause, tuple(ops)) for cause, ops in found.items()]


def _sent_for(op: Op) -> Cause | None:
    """The cause of the exchange that an op belongs to."""
    causes = () if op.cause is None else op.cause.parts or (op.cause,)
    alike = all(cause.kind == "halo" and cause.values == causes[0].values for cause in causes)
    return causes[0] if causes and alike else None


def _values(program: Program) -> Iterator[Value]:
    yield from program.main.params
    for op in program.main.body.ops:
        yield from op.results


def _holds_numbers(value: Value) -> bool:
    """Whether its elements can represent the numbers of up to `_MOST_ELEMENTS` elements."""
    return value.dtype.bits >= 32 and not value.dtype.is_complex


def _between(program: Program, value: Value, ops: Sequence[Op]) -> tuple[Op, ...] | None:
    """The ops that depend on a value, up to these; None if they depend on other values too."""
    makers = {v: op for op in program.main.body.ops for v in op.results}
    needed: set[Op] = set()
    pending = list(ops)
    while pending:
        op = pending.pop()
        needed.add(op)
        for operand in (v for v in op.operands if v is not value):
            if operand not in makers or op.regions:
                return None
            if makers[operand] not in needed:
                pending.append(makers[operand])
    return tuple(op for op in program.main.body.ops if op in needed)


def _by_device(array: Array, grid: Sequence[int]) -> Array:
    """The elements of each device as a row, with the devices in the order of the mesh."""
    full = np.broadcast_to(array, (*grid, *array.shape[len(grid) :]))
    return full.reshape(math.prod(grid), -1)


def _along(mesh: Mesh, value: Value, axes: Sequence[str], got: Array) -> _Received | None:
    """What the devices along some axes receive, those at position 0 along all others."""
    coordinates = np.array(list(np.ndindex(*mesh.shape)))
    along = [mesh.names.index(name) for name in axes]
    others = [a for a in range(len(mesh.shape)) if a not in along]
    place = np.ravel_multi_index([coordinates[:, a] for a in along], [mesh.shape[a] for a in along])
    first = [i for i in range(mesh.size) if not coordinates[i, others].any()]
    size = value.type.size
    is_real = np.isfinite(got) & (got >= _FIRST) & (got < _FIRST + mesh.size * size)
    if len(first) > _MOST_DEVICES or not is_real.any():
        return None
    number = np.where(is_real, got, _FIRST).astype(np.int64) - _FIRST
    within = np.array(np.unravel_index(number % size, value.shape))
    dim = next((d for d, n in enumerate(value.shape) if _is_cut(within[d], is_real, n)), int(np.argmax(value.shape)))
    shard = value.shape[dim]
    rows: list[tuple[int, list[tuple[int, int, int]]]] = []
    for i in sorted(first, key=lambda i: int(place[i])):
        owners, elements = place[number[i][is_real[i]] // size], within[dim][i][is_real[i]]
        lacked = sorted({int(e) for e in (owners * shard + elements)[owners != place[i]]})
        rows.append((i if mesh.devices is None else mesh.devices[i], list(_stretches(lacked, shard))))
    return _Received(dim, shard, rows)


def _is_cut(within: Array, is_real: Array, size: int) -> bool:
    """Whether some device receives some elements along a dim of a shard, and not all of them."""
    return any(0 < len(np.unique(row[real])) < size for row, real in zip(within, is_real, strict=True))


def _stretches(elements: Sequence[int], shard: int) -> Iterator[tuple[int, int, int]]:
    """Runs of elements from one device: its position, and the first and last element."""
    for (owner, _), run in groupby(enumerate(elements), lambda pair: (pair[1] // shard, pair[1] - pair[0])):
        found = [element for _, element in run]
        yield owner, found[0], found[-1] + 1


def _stretch(owner: int, first: int, behind: int, top: float, scale: float, what: str, stroke: float) -> str:
    x, width, height = _LEFT + scale * first, scale * (behind - first), _ROW - 2 * stroke
    style = f'fill="{hue(owner)}" stroke="currentColor" stroke-width="{stroke}"'
    return f"<g><title>{what} {span(first, behind)}</title>{rect(x, top, width, height, style)}</g>"
