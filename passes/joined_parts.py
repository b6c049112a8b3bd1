"""What a concatenation joins, seen through the slices that it is made of: rotations, shifts, swapped halves. Such a
slice by itself may have fewer elements than there are devices, or other shard boundaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from ir.ops import Factor, FactorKind, FactorRule
from ir.ops.rule_helpers import int_attr, ints_attr
from ir.program import Op, Value


class Part(NamedTuple):
    """`size` elements of a value along the concatenated dim, from `start` on."""

    source: Value
    start: int
    size: int


def parts_of(op: Op, maker: Callable[[Value], Op | None]) -> Sequence[Part]:
    """The parts that a concatenation joins. A slice along that dim only is a part of its operand. Empty for other
    ops."""
    if op.name != "concatenate":
        return ()
    dim = int_attr(op.attrs, "dim")
    return [_part(value, maker(value), dim) for value in op.operands]


def _part(value: Value, made: Op | None, dim: int) -> Part:
    if made is not None and _cuts_runs(made):
        (source,) = made.operands
        if [d for d, n in enumerate(source.shape) if n != value.shape[d]] == [dim]:
            return Part(source, ints_attr(made.attrs, "start")[dim], value.shape[dim])
    return Part(value, 0, value.shape[dim])


def _cuts_runs(op: Op) -> bool:
    """Whether the op is a slice of elements that are next to each other."""
    return op.name == "slice" and all(step == 1 for step in ints_attr(op.attrs, "stride"))


class Pieces(NamedTuple):
    """What a tensor is put together of along a dim: None for a piece that holds nothing."""

    dim: int
    sizes: tuple[int, ...]
    values: tuple[Value | None, ...]

    @property
    def starts(self) -> Sequence[int]:
        return [0, *accumulate(self.sizes)][:-1]


def pieces_of(op: Op | None, is_nothing: Callable[[Value], bool]) -> Pieces | None:
    """The pieces of a concatenation, or of a tensor that is padded along one dim; None for the result of another op."""
    if op is None:
        return None
    if op.name == "concatenate":
        dim = int_attr(op.attrs, "dim")
        values = tuple([None if is_nothing(v) else v for v in op.operands])
        return Pieces(dim, tuple([v.shape[dim] for v in op.operands]), values)
    if op.name != "pad" or not is_nothing(op.operands[1]):
        return None
    padded = padded_dim(op)
    if padded is None:
        return None
    (dim, low, high), x = padded, op.operands[0]
    pieces = [(size, v) for size, v in ((low, None), (x.shape[dim], x), (high, None)) if size]
    return Pieces(dim, tuple([size for size, _ in pieces]), tuple([v for _, v in pieces]))


def padded_dim(op: Op) -> tuple[int, int, int] | None:
    """The only dim that a pad makes longer, and by how much before and behind; None if it does anything else."""
    edges = list(zip(ints_attr(op.attrs, "low"), ints_attr(op.attrs, "high"), strict=True))
    dims = [d for d, edge in enumerate(edges) if any(edge)]
    if len(dims) != 1 or min(edges[dims[0]]) < 0 or any(ints_attr(op.attrs, "interior")):
        return None
    return dims[0], *edges[dims[0]]


class Shift(NamedTuple):
    """A value, and how far it is padded before and behind in each dim. Negative numbers cut it."""

    source: Value
    low: tuple[int, ...]
    high: tuple[int, ...]


def shift_of(op: Op, maker: Callable[[Value], Op | None]) -> Shift | None:
    """A pad of a slice as one pad of the slice's operand; None if it adds elements where the slice cut some off, or
    between elements. None for other ops."""
    if op.name != "pad" or any(ints_attr(op.attrs, "interior")):
        return None
    made = maker(op.operands[0])
    if made is None or not _cuts_runs(made):
        return None
    (source,) = made.operands
    before, limit = ints_attr(made.attrs, "start"), ints_attr(made.attrs, "limit")
    behind = [n - end for n, end in zip(source.shape, limit, strict=True)]
    low, high = ints_attr(op.attrs, "low"), ints_attr(op.attrs, "high")
    if any(cut and added > 0 for cut, added in (*zip(before, low, strict=True), *zip(behind, high, strict=True))):
        return None
    return Shift(source, _less(low, before), _less(high, behind))


def _less(added: Sequence[int], cut: Sequence[int]) -> tuple[int, ...]:
    return tuple(a - b for a, b in zip(added, cut, strict=True))


def moved_along(value: Value, dim: int) -> FactorRule:
    """The factor rule of a value and a result that has its elements at other positions of a dim."""
    kinds = [FactorKind.WINDOW if d == dim else FactorKind.PARALLEL for d in range(value.type.rank)]
    dims = tuple((d,) for d in range(value.type.rank))
    return FactorRule(tuple(map(Factor, value.shape, kinds)), (dims,), (dims,))
