"""Bounds of ops on integers that are known to be within bounds."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

from ir.ops import OPS
from ir.ops.elementwise import COMPARES
from ir.ops.indexing import gather_fill
from ir.ops.rule_helpers import ints_attr
from ir.program import Op
from ir.registry import Registry
from passes.optimize.fold.facts import IntegerFact, bounded, limits

Bounds = tuple[int, int]


def range_of_op(op: Op, operands: Sequence[IntegerFact | None]) -> IntegerFact | None:
    sources = _sources(op)
    if sources:
        found = union(taken(op, sources, operands))
        return bounded(op.result.type, *found) if found is not None else None
    rule = _BOUNDS.get(op.name)
    known = [k for k in operands if k is not None]
    if rule is None or len(known) < len(operands):
        return None
    found = rule(op, [(k.low, k.high) for k in known])
    return bounded(op.result.type, *found) if found is not None else None


def _sources(op: Op) -> tuple[int, ...]:
    """The operands whose elements are the elements of the result. Collectives may bring in elements of other
    devices."""
    opdef = OPS[op.name]
    return opdef.sources(op) if opdef.communication is None else ()


def taken(op: Op, positions: Sequence[int], operands: Sequence[IntegerFact | None]) -> Sequence[IntegerFact | None]:
    sources = [operands[i] for i in positions if op.operands[i].type.size]
    fill = gather_fill(op)
    assert not isinstance(fill, complex), op.name
    return [*sources, IntegerFact(int(fill), int(fill))] if fill is not None else sources


def union(sources: Sequence[IntegerFact | None]) -> Bounds | None:
    known = [k for k in sources if k is not None]
    if not known or len(known) < len(sources):
        return None
    return min(k.low for k in known), max(k.high for k in known)


def _corners(of: Callable[[int, int], int], x: Bounds, y: Bounds) -> Bounds:
    values = [of(a, b) for a in x for b in y]
    return min(values), max(values)


def _sign(x: int) -> int:
    return (x > 0) - (x < 0)


_BOUNDS: Registry[Callable[[Op, Sequence[Bounds]], Bounds | None]] = Registry(
    {
        "add": lambda op, b: (b[0][0] + b[1][0], b[0][1] + b[1][1]),
        "divide": lambda op, b: _corners(lambda x, y: abs(x) // y * _sign(x), *b) if b[1][0] > 0 else None,
        "maximum": lambda op, b: (max(b[0][0], b[1][0]), max(b[0][1], b[1][1])),
        "minimum": lambda op, b: (min(b[0][0], b[1][0]), min(b[0][1], b[1][1])),
        "multiply": lambda op, b: _corners(operator.mul, *b),
        "negate": lambda op, b: (-b[0][1], -b[0][0]),
        "popcnt": lambda op, b: (0, op.result.dtype.bits),
        "sort": lambda op, b: b[0],
        "sign": lambda op, b: (_sign(b[0][0]), _sign(b[0][1])),
        "subtract": lambda op, b: (b[0][0] - b[1][1], b[0][1] - b[1][0]),
    }
)


@_BOUNDS.of("abs")
def _bounds_of_abs(op: Op, b: Sequence[Bounds]) -> Bounds:
    low, high = b[0]
    return max(0, low, -high), max(abs(low), abs(high))


@_BOUNDS.of("compare")
def _bounds_of_compare(op: Op, b: Sequence[Bounds]) -> Bounds | None:
    """Known if all pairs of bounds compare equally. For overlapping intervals, equality is unknown."""
    (xl, xh), (yl, yh) = b
    direction = str(op.attrs["direction"])
    if direction in ("EQ", "NE") and xl <= yh and yl <= xh and not xl == xh == yl == yh:
        return None
    outcomes = {int(COMPARES[direction](x, y)) for x in b[0] for y in b[1]}
    return (min(outcomes), max(outcomes)) if len(outcomes) == 1 else None


@_BOUNDS.of("remainder")
def _bounds_of_remainder(op: Op, b: Sequence[Bounds]) -> Bounds | None:
    (xl, xh), (yl, yh) = b
    if yl <= 0:
        return None
    if -yl < xl and xh < yl:
        return xl, xh
    return max(min(xl, 0), 1 - yh), min(max(xh, 0), yh - 1)


@_BOUNDS.of("and")
def _bounds_of_and(op: Op, b: Sequence[Bounds]) -> Bounds | None:
    if op.result.dtype.kind == "pred":
        return min(b[0][0], b[1][0]), min(b[0][1], b[1][1])
    return (0, min(b[0][1], b[1][1])) if b[0][0] >= 0 and b[1][0] >= 0 else None


@_BOUNDS.of("or")
def _bounds_of_or(op: Op, b: Sequence[Bounds]) -> Bounds | None:
    low, high = max(b[0][0], b[1][0]), max(b[0][1], b[1][1])
    if op.result.dtype.kind == "pred":
        return low, high
    return (low, 2 ** high.bit_length() - 1) if b[0][0] >= 0 and b[1][0] >= 0 else None


@_BOUNDS.of("not")
def _bounds_of_not(op: Op, b: Sequence[Bounds]) -> Bounds:
    (low, high), (least, most) = b[0], limits(op.result.dtype)
    return least + most - high, least + most - low


@_BOUNDS.of("convert")
def _bounds_of_convert(op: Op, b: Sequence[Bounds]) -> Bounds | None:
    low, high = b[0]
    if op.result.dtype.kind != "pred":
        return b[0]
    return (1, 1) if low > 0 or high < 0 else (0, 0) if low == high == 0 else None


@_BOUNDS.of("shift_right_arithmetic")
def _bounds_of_arithmetic_shift(op: Op, b: Sequence[Bounds]) -> Bounds | None:
    """For operands without a set sign bit, which the op repeats in unsigned integers too."""
    return None if b[0][1] >> (op.result.dtype.bits - 1) else _bounds_of_shift(op, b)


@_BOUNDS.of("shift_right_logical")
def _bounds_of_shift(op: Op, b: Sequence[Bounds]) -> Bounds | None:
    (low, high), (least, most) = b
    return (low >> most, high >> least) if low >= 0 and least >= 0 and most < op.result.dtype.bits else None


@_BOUNDS.of("reduce")
def _bounds_of_reduce(op: Op, b: Sequence[Bounds]) -> Bounds | None:
    low, high = b[0]
    kind = op.attrs["kind"]
    if kind in ("max", "min") or (kind in ("and", "or") and op.result.dtype.kind == "pred"):
        return low, high
    count = math.prod(op.operands[0].shape[d] for d in ints_attr(op.attrs, "dims"))
    return (low * count, high * count) if kind == "sum" else None


@_BOUNDS.of("clamp")
def _bounds_of_clamp(op: Op, b: Sequence[Bounds]) -> Bounds:
    """The upper bound takes precedence over the lower."""
    least, x, most = b
    return min(max(least[0], x[0]), most[0]), min(max(least[1], x[1]), most[1])
