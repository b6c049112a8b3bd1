"""What a concatenation puts together, seen through the slices that cut it out: rotations, shifts, halves that change
places. Each by itself such a slice may be of fewer elements than there are devices, or have other shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ir.ops import Factor, FactorKind, FactorRule
from ir.ops.rule_helpers import int_attr, ints_attr
from ir.program import Op, Value


class Part(NamedTuple):
    """So many elements of a value along the dim, from `start` on."""

    source: Value
    start: int
    size: int


def parts_of(op: Op, maker: Callable[[Value], Op | None]) -> Sequence[Part]:
    """What a concatenation is of: of what is cut along that dim alone, what it is cut from. Nothing of other ops."""
    if op.name != "concatenate":
        return ()
    dim = int_attr(op.attrs, "dim")
    return [_part(value, maker(value), dim) for value in op.operands]


def _part(value: Value, made: Op | None, dim: int) -> Part:
    size = value.shape[dim]
    if made is None or made.name != "slice" or any(step != 1 for step in ints_attr(made.attrs, "stride")):
        return Part(value, 0, size)
    (source,) = made.operands
    cuts = [d for d, n in enumerate(source.shape) if n != value.shape[d]]
    return Part(source, ints_attr(made.attrs, "start")[dim], size) if cuts == [dim] else Part(value, 0, size)


class Shift(NamedTuple):
    """A value, and how far it is padded before and behind in each dim; by less than nothing where it is cut."""

    source: Value
    low: tuple[int, ...]
    high: tuple[int, ...]


def shift_of(op: Op, maker: Callable[[Value], Op | None]) -> Shift | None:
    """What a pad makes of a slice, as a pad of what was cut: None if it adds where something was cut off, or between
    elements. None of other ops."""
    if op.name != "pad" or any(ints_attr(op.attrs, "interior")):
        return None
    made = maker(op.operands[0])
    if made is None or made.name != "slice" or any(step != 1 for step in ints_attr(made.attrs, "stride")):
        return None
    (source,) = made.operands
    before, limit = ints_attr(made.attrs, "start"), ints_attr(made.attrs, "limit")
    behind = [n - end for n, end in zip(source.shape, limit, strict=True)]
    low, high = ints_attr(op.attrs, "low"), ints_attr(op.attrs, "high")
    if any(cut and added > 0 for cut, added in (*zip(before, low, strict=True), *zip(behind, high, strict=True))):
        return None
    edges = ((tuple(a - b for a, b in zip(*side, strict=True))) for side in ((low, before), (high, behind)))
    return Shift(source, *edges)


def moved_along(value: Value, dim: int) -> FactorRule:
    """How a value and what has its elements at other places of a dim share their dims."""
    kinds = [FactorKind.WINDOW if d == dim else FactorKind.PARALLEL for d in range(value.type.rank)]
    dims = tuple((d,) for d in range(value.type.rank))
    return FactorRule(tuple(map(Factor, value.shape, kinds)), (dims,), (dims,))
