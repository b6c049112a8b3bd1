"""Boxes that consist of pieces at positions that depend on the device, gathered by one kernel.

A box exchange writes received pieces into a buffer one by one, and cuts the box out of it. XLA's CPU backend makes a
kernel of each update and, if a loop uses the update's position, another one in front of the loop that looks it up. For
each element of the box, the piece and the element of it are known for all devices before the program runs. So on CPUs
small boxes are gathered from the concatenated pieces, with indices from a table that has a row for each device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ir.dataflow import Uses, uses_of
from ir.ops.creation import constant_value, holds_nothing
from ir.ops.indexing import starts_of_update
from ir.ops.rule_helpers import ints_attr
from ir.program import Op, Program, Value

_MOST = 1 << 14
"""Boxes with more elements are copied faster piece by piece than gathered element by element."""


@dataclass(frozen=True)
class Assembly:
    """A box of `pieces`, in the order in which they are written, each from `starts` on along `dim` of a buffer."""

    pieces: tuple[Value, ...]
    starts: tuple[Value, ...]
    index: Value
    dim: int
    size: int


@dataclass(frozen=True)
class Assemblies:
    """The assemblies that replace the slices of buffers, by their results, and the updates that need not be written."""

    of: Mapping[Value, Assembly] = field(default_factory=dict[Value, Assembly])
    updates: frozenset[Op] = frozenset()


def assemblies_of(program: Program, index_of: Mapping[Value, Value]) -> Assemblies:
    """The boxes that are assembled at positions computed from one `axis_index`, which `index_of` has."""
    uses = uses_of(program)
    found: dict[Value, Assembly] = {}
    written: set[Op] = set()
    for maker in tuple(uses.makers.values()):
        updates = _updates(uses, maker) if maker.name == "slice" else []
        assembly = _assembly(uses, updates, index_of) if len(updates) > 1 and _is_small(maker) else None
        if assembly is not None and _cuts_along(maker, assembly.dim):
            found[maker.result] = assembly
            written.update(updates)
    return Assemblies(found, frozenset(written))


def _updates(uses: Uses, cut: Op) -> list[Op]:
    """The updates of the sliced buffer, in order, if nothing else uses them; none if the buffer is not empty before."""
    found: list[Op] = []
    at = cut.operands[0]
    while (maker := uses.makers.get(at)) is not None and starts_of_update(maker) and uses.count(at) == 1:
        found.append(maker)
        at = maker.operands[0]
    return found[::-1] if holds_nothing(maker) else []


def _is_small(cut: Op) -> bool:
    """Whether the result is faster to gather. Short floats are not gathered, because XLA's CPU backend may change their
    bits."""
    return 0 < cut.result.type.size <= _MOST and not cut.result.dtype.is_short


def _assembly(uses: Uses, updates: list[Op], index_of: Mapping[Value, Value]) -> Assembly | None:
    """The pieces, if their positions differ along one dim, and between devices along the axes of one index only."""
    shape = updates[0].result.shape
    starts = [starts_of_update(op) for op in updates]
    moved = {d for places in starts for d, start in enumerate(places) if start in index_of}
    if len(moved) != 1:
        return None
    (dim,) = moved
    indices = {index_of[places[dim]] for places in starts if places[dim] in index_of}
    others = [d for d in range(len(shape)) if d != dim]
    are_whole = all(op.operands[1].shape[d] == shape[d] for op in updates for d in others)
    are_known = all(p[dim] in index_of or constant_value(uses.makers.get(p[dim])) is not None for p in starts)
    if len(indices) > 1 or not are_whole or not are_known:
        return None
    pieces = tuple(op.operands[1] for op in updates)
    return Assembly(pieces, tuple(places[dim] for places in starts), indices.pop(), dim, shape[dim])


def _cuts_along(cut: Op, dim: int) -> bool:
    """Whether the slice removes only the ends of the dim."""
    start, limit, stride = (ints_attr(cut.attrs, name) for name in ("start", "limit", "stride"))
    ends = zip(start, limit, cut.operands[0].shape, strict=True)
    return set(stride) <= {1} and all(d == dim or (low, high) == (0, n) for d, (low, high, n) in enumerate(ends))
