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


def moved_along(value: Value, dim: int) -> FactorRule:
    """How a value and what has its elements at other places of a dim share their dims."""
    kinds = [FactorKind.WINDOW if d == dim else FactorKind.PARALLEL for d in range(value.type.rank)]
    dims = tuple((d,) for d in range(value.type.rank))
    return FactorRule(tuple(map(Factor, value.shape, kinds)), (dims,), (dims,))
