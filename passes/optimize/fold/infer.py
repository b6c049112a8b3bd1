"""What follows about the results of ops from what is known of their operands.

Of a small tensor whose operands are known, every number is computed. Of others a grid may follow, or bounds. Each rule
is a small function of its op, of exact integers; what does not fit the type of the result has wrapped.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ir.ops.indexing import gather_fill
from ir.ops.rule_helpers import int_attr, ints_attr
from ir.program import Op, Value
from ir.types import DType
from passes.optimize.fold.facts import (
    FEW,
    Grid,
    Known,
    Numbers,
    bounded,
    enumerated,
    is_counted,
    limits,
    numbers_of,
    of_literal,
    on_grid,
)

Bounds = tuple[int, int]


class Facts:
    """What is known of the values of a function."""

    def __init__(self) -> None:
        self._known: dict[Value, Known] = {}

    def of(self, value: Value) -> Known | None:
        """What is known, at least the bounds of the type; None for what is not counted."""
        found = self._known.get(value)
        if found is not None:
            return found
        return Known(*limits(value.dtype)) if is_counted(value.type) else None

    def number(self, value: Value) -> int | None:
        """The number that every element is."""
        known = self._known.get(value)
        return known.low if known is not None and known.is_number else None

    def put(self, value: Value, known: Known | None) -> None:
        if known is not None:
            self._known[value] = known

    def copy(self, value: Value, copy: Value) -> None:
        """What is known of a value holds for its copy."""
        self.put(copy, self._known.get(value))

    def learn(self, op: Op) -> None:
        """Finds out what follows for the results of an op."""
        if any(is_counted(v.type) for v in op.results):
            operands = [self.of(v) for v in op.operands]
            for value, known in zip(op.results, _infer(op, operands), strict=True):
                self.put(value, known)


def _infer(op: Op, operands: Sequence[Known | None]) -> Sequence[Known | None]:
    if len(op.results) > 1:
        several = _SEVERAL.get(op.name)
        return several(op, operands) if several is not None else (None,) * len(op.results)
    if op.name == "constant":
        return (of_literal(op.result.type, op.attrs["value"]),)
    return (_enumerate(op, operands) or _on_grid(op, operands) or _within(op, operands),)


# Every number.


def _enumerate(op: Op, operands: Sequence[Known | None]) -> Known | None:
    rule = _EXACT.get(op.name)
    if rule is None or op.result.type.size > FEW:
        return None
    arrays: list[Numbers] = []
    for value, known in zip(op.operands, operands, strict=True):
        numbers = numbers_of(known, value.type) if known is not None else None
        if numbers is None:
            return None
        arrays.append(numbers)
    result = rule(op, arrays)
    if result is None:
        return None
    return enumerated(op.result.type, _wrapped(np.asarray(result, object), op.result.dtype))


def _wrapped(numbers: Numbers, dtype: DType) -> Numbers:
    """The numbers as an integer type holds them. Booleans are 0 and 1 already."""
    if dtype.kind == "pred":
        return np.array([int(n) for n in numbers.reshape(-1)], object).reshape(numbers.shape)
    low, _ = limits(dtype)
    return np.asarray((numbers - low) % 2**dtype.bits + low, object)


Exact = Callable[[Op, Sequence[Numbers]], Any]
_COMPARED: Mapping[str, Callable[[Any, Any], Any]] = {
    "EQ": operator.eq, "NE": operator.ne, "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge,
}  # fmt: skip


def _numbers_of_broadcast(op: Op, arrays: Sequence[Numbers]) -> Any:
    dims, shape = ints_attr(op.attrs, "dims"), op.result.shape
    order = sorted(range(len(dims)), key=lambda i: dims[i])
    sizes = {dims[i]: op.operands[0].shape[i] for i in order}
    placed = arrays[0].transpose(order).reshape([sizes.get(d, 1) for d in range(len(shape))])
    return np.broadcast_to(placed, shape)


def _numbers_of_slice(op: Op, arrays: Sequence[Numbers]) -> Any:
    start, limit = ints_attr(op.attrs, "start"), ints_attr(op.attrs, "limit")
    return arrays[0][tuple(map(slice, start, limit, ints_attr(op.attrs, "stride") or (1,) * len(start)))]


def _numbers_of_compare(op: Op, arrays: Sequence[Numbers]) -> Any:
    return _COMPARED[str(op.attrs["direction"])](*arrays)


def _numbers_of_select(op: Op, arrays: Sequence[Numbers]) -> Any:
    which, on_true, on_false = arrays
    return np.where(which.astype(bool), on_true, on_false)


def _numbers_of_not(op: Op, arrays: Sequence[Numbers]) -> Any:
    return 1 - arrays[0] if op.result.dtype.kind == "pred" else -1 - arrays[0]


def _numbers_of_convert(op: Op, arrays: Sequence[Numbers]) -> Any:
    return arrays[0] != 0 if op.result.dtype.kind == "pred" else arrays[0]


def _numbers_of_divide(op: Op, arrays: Sequence[Numbers]) -> Any:
    """Towards zero. By 0 and -1 there are outcomes of their own."""
    x, y = arrays
    return abs(x) // y * np.where(x < 0, -1, 1) if np.all(y > 0) else None


def _numbers_of_remainder(op: Op, arrays: Sequence[Numbers]) -> Any:
    x, y = arrays
    return abs(x) % y * np.where(x < 0, -1, 1) if np.all(y > 0) else None


def _numbers_of_reduce(op: Op, arrays: Sequence[Numbers]) -> Any:
    logical = op.result.dtype.kind == "pred"
    reducers: dict[str, np.ufunc] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
    if logical:
        reducers |= {"and": np.minimum, "or": np.maximum}
    reducer = reducers.get(str(op.attrs["kind"]))
    return reducer.reduce(arrays[0], axis=ints_attr(op.attrs, "dims")) if reducer is not None else None


_EXACT: Mapping[str, Exact] = {
    "abs": lambda op, a: abs(a[0]),
    "add": lambda op, a: a[0] + a[1],
    "and": lambda op, a: a[0] & a[1],
    "broadcast_in_dim": _numbers_of_broadcast,
    "clamp": lambda op, a: np.minimum(np.maximum(a[0], a[1]), a[2]),
    "compare": _numbers_of_compare,
    "concatenate": lambda op, a: np.concatenate(a, int_attr(op.attrs, "dim")),
    "convert": _numbers_of_convert,
    "divide": _numbers_of_divide,
    "maximum": lambda op, a: np.maximum(a[0], a[1]),
    "minimum": lambda op, a: np.minimum(a[0], a[1]),
    "multiply": lambda op, a: a[0] * a[1],
    "negate": lambda op, a: -a[0],
    "not": _numbers_of_not,
    "or": lambda op, a: a[0] | a[1],
    "reduce": _numbers_of_reduce,
    "remainder": _numbers_of_remainder,
    "reshape": lambda op, a: a[0].reshape(op.result.shape),
    "reverse": lambda op, a: np.flip(a[0], ints_attr(op.attrs, "dims")),
    "select": _numbers_of_select,
    "slice": _numbers_of_slice,
    "subtract": lambda op, a: a[0] - a[1],
    "transpose": lambda op, a: a[0].transpose(ints_attr(op.attrs, "perm")),
    "xor": lambda op, a: a[0] ^ a[1],
}


# Grids.


def _on_grid(op: Op, operands: Sequence[Known | None]) -> Known | None:
    rule = _GRIDS.get(op.name)
    grids = [known.grid for known in operands if known is not None and known.grid is not None]
    if rule is None or len(grids) < len(operands):
        return None
    found = rule(op, grids)
    return on_grid(op.result.type, found.start, found.steps) if found is not None else None


def _grid_of_iota(op: Op, grids: Sequence[Grid]) -> Grid:
    dim = int_attr(op.attrs, "dim")
    return Grid(0, tuple(int(d == dim) for d in range(op.result.type.rank)))


def _grid_of_broadcast(op: Op, grids: Sequence[Grid]) -> Grid:
    steps = dict(zip(ints_attr(op.attrs, "dims"), grids[0].steps, strict=True))
    return Grid(grids[0].start, tuple(steps.get(d, 0) for d in range(op.result.type.rank)))


def _grid_of_reshape(op: Op, grids: Sequence[Grid]) -> Grid | None:
    """Dims of size 1 come and go."""
    source, target = op.operands[0].shape, op.result.shape
    if grids[0].is_splat:
        return Grid(grids[0].start, (0,) * len(target))
    if [n for n in source if n > 1] != [n for n in target if n > 1]:
        return None
    steps = iter(s for s, n in zip(grids[0].steps, source, strict=True) if n > 1)
    return Grid(grids[0].start, tuple(next(steps) if n > 1 else 0 for n in target))


def _grid_of_slice(op: Op, grids: Sequence[Grid]) -> Grid:
    first = ints_attr(op.attrs, "start")
    strides = ints_attr(op.attrs, "stride") or (1,) * len(first)
    start = grids[0].start + sum(s * i for s, i in zip(grids[0].steps, first, strict=True))
    return Grid(start, tuple(s * k for s, k in zip(grids[0].steps, strides, strict=True)))


def _grid_of_reverse(op: Op, grids: Sequence[Grid]) -> Grid:
    start, steps = grids[0].start, list(grids[0].steps)
    for d in ints_attr(op.attrs, "dims"):
        start += steps[d] * (op.result.shape[d] - 1)
        steps[d] = -steps[d]
    return Grid(start, tuple(steps))


def _grid_of_sum(op: Op, grids: Sequence[Grid]) -> Grid:
    x, y = grids
    return Grid(x.start + y.start, tuple(map(operator.add, x.steps, y.steps)))


def _scaled(grid: Grid, factor: int) -> Grid:
    return Grid(grid.start * factor, tuple(s * factor for s in grid.steps))


def _grid_of_difference(op: Op, grids: Sequence[Grid]) -> Grid:
    return _grid_of_sum(op, (grids[0], _scaled(grids[1], -1)))


def _grid_of_product(op: Op, grids: Sequence[Grid]) -> Grid | None:
    x, y = grids
    if x.is_splat or y.is_splat:
        return _scaled(y, x.start) if x.is_splat else _scaled(x, y.start)
    return None


def _grid_of_convert(op: Op, grids: Sequence[Grid]) -> Grid | None:
    return grids[0] if op.result.dtype.kind != "pred" else None


def _grid_of_transpose(op: Op, grids: Sequence[Grid]) -> Grid:
    return Grid(grids[0].start, tuple(grids[0].steps[p] for p in ints_attr(op.attrs, "perm")))


_GRIDS: Mapping[str, Callable[[Op, Sequence[Grid]], Grid | None]] = {
    "add": _grid_of_sum,
    "broadcast_in_dim": _grid_of_broadcast,
    "convert": _grid_of_convert,
    "iota": _grid_of_iota,
    "multiply": _grid_of_product,
    "negate": lambda op, grids: _scaled(grids[0], -1),
    "reshape": _grid_of_reshape,
    "reverse": _grid_of_reverse,
    "shard": lambda op, grids: grids[0],
    "slice": _grid_of_slice,
    "subtract": _grid_of_difference,
    "transpose": _grid_of_transpose,
}


# Bounds.


def _within(op: Op, operands: Sequence[Known | None]) -> Known | None:
    if op.name in _TAKEN_FROM:
        found = _union(_taken(op, operands))
        return bounded(op.result.type, *found) if found is not None else None
    rule = _BOUNDS.get(op.name)
    known = [k for k in operands if k is not None]
    if rule is None or len(known) < len(operands):
        return None
    found = rule(op, [(k.low, k.high) for k in known])
    return bounded(op.result.type, *found) if found is not None else None


_TAKEN_FROM: Mapping[str, Callable[[int], Sequence[int]]] = {
    "broadcast_in_dim": lambda n: (0,),
    "concatenate": range,
    "dynamic_slice": lambda n: (0,),
    "dynamic_update_slice": lambda n: (0, 1),
    "gather": lambda n: (0,),
    "pad": lambda n: (0, 1),
    "reshape": lambda n: (0,),
    "reverse": lambda n: (0,),
    "select": lambda n: (1, 2),
    "shard": lambda n: (0,),
    "slice": lambda n: (0,),
    "sort": lambda n: (0,),
    "transpose": lambda n: (0,),
}
"""The operands, of n, that elements of the result are elements of."""


def _taken(op: Op, operands: Sequence[Known | None]) -> Sequence[Known | None]:
    sources = [operands[i] for i in _TAKEN_FROM[op.name](len(operands)) if op.operands[i].type.size]
    fill = gather_fill(op) if op.name == "gather" else None
    assert not isinstance(fill, complex), op.name
    return [*sources, Known(int(fill), int(fill))] if fill is not None else sources


def _union(sources: Sequence[Known | None]) -> Bounds | None:
    known = [k for k in sources if k is not None]
    if not known or len(known) < len(sources):
        return None
    return min(k.low for k in known), max(k.high for k in known)


def _corners(of: Callable[[int, int], int], x: Bounds, y: Bounds) -> Bounds:
    values = [of(a, b) for a in x for b in y]
    return min(values), max(values)


def _towards_zero(x: int, y: int) -> int:
    return abs(x) // y * (-1 if x < 0 else 1)


def _sign(x: int) -> int:
    return (x > 0) - (x < 0)


def _bounds_of_abs(op: Op, b: Sequence[Bounds]) -> Bounds:
    low, high = b[0]
    return max(0, low, -high), max(abs(low), abs(high))


def _bounds_of_compare(op: Op, b: Sequence[Bounds]) -> Bounds | None:
    (xl, xh), (yl, yh) = b
    match str(op.attrs["direction"]):
        case "LT":
            return _truth(xh < yl, xl >= yh)
        case "LE":
            return _truth(xh <= yl, xl > yh)
        case "GT":
            return _truth(xl > yh, xh <= yl)
        case "GE":
            return _truth(xl >= yh, xh < yl)
        case "EQ":
            return _truth(xl == xh == yl == yh, xh < yl or yh < xl)
        case _:
            return _truth(xh < yl or yh < xl, xl == xh == yl == yh)


def _truth(surely: bool, never: bool) -> Bounds | None:
    return (1, 1) if surely else (0, 0) if never else None


def _bounds_of_divide(op: Op, b: Sequence[Bounds]) -> Bounds | None:
    return _corners(_towards_zero, *b) if b[1][0] > 0 else None


def _bounds_of_remainder(op: Op, b: Sequence[Bounds]) -> Bounds | None:
    (xl, xh), (yl, yh) = b
    if yl <= 0:
        return None
    if -yl < xl and xh < yl:
        return xl, xh
    return max(min(xl, 0), 1 - yh), min(max(xh, 0), yh - 1)


def _bounds_of_and(op: Op, b: Sequence[Bounds]) -> Bounds | None:
    if op.result.dtype.kind == "pred":
        return min(b[0][0], b[1][0]), min(b[0][1], b[1][1])
    return (0, min(b[0][1], b[1][1])) if b[0][0] >= 0 and b[1][0] >= 0 else None


def _bounds_of_or(op: Op, b: Sequence[Bounds]) -> Bounds | None:
    low, high = max(b[0][0], b[1][0]), max(b[0][1], b[1][1])
    if op.result.dtype.kind == "pred":
        return low, high
    return (low, 2 ** high.bit_length() - 1) if b[0][0] >= 0 and b[1][0] >= 0 else None


def _bounds_of_not(op: Op, b: Sequence[Bounds]) -> Bounds:
    (low, high), (least, most) = b[0], limits(op.result.dtype)
    return least + most - high, least + most - low


def _bounds_of_convert(op: Op, b: Sequence[Bounds]) -> Bounds | None:
    low, high = b[0]
    return _truth(low > 0 or high < 0, low == high == 0) if op.result.dtype.kind == "pred" else b[0]


def _bounds_of_shift(op: Op, b: Sequence[Bounds]) -> Bounds | None:
    """Of what has no sign bit set, which an arithmetic shift repeats in unsigned integers too."""
    (low, high), (least, most) = b
    if op.name == "shift_right_arithmetic" and high >> (op.result.dtype.bits - 1):
        return None
    return (low >> most, high >> least) if low >= 0 and least >= 0 and most < op.result.dtype.bits else None


def _bounds_of_reduce(op: Op, b: Sequence[Bounds]) -> Bounds | None:
    low, high = b[0]
    kind = op.attrs["kind"]
    if kind in ("max", "min") or (kind in ("and", "or") and op.result.dtype.kind == "pred"):
        return low, high
    count = math.prod(op.operands[0].shape[d] for d in ints_attr(op.attrs, "dims"))
    return (low * count, high * count) if kind == "sum" else None


def _bounds_of_clamp(op: Op, b: Sequence[Bounds]) -> Bounds:
    """The upper bound wins over the lower."""
    least, x, most = b
    return min(max(least[0], x[0]), most[0]), min(max(least[1], x[1]), most[1])


_BOUNDS: Mapping[str, Callable[[Op, Sequence[Bounds]], Bounds | None]] = {
    "abs": _bounds_of_abs,
    "add": lambda op, b: (b[0][0] + b[1][0], b[0][1] + b[1][1]),
    "and": _bounds_of_and,
    "clamp": _bounds_of_clamp,
    "compare": _bounds_of_compare,
    "convert": _bounds_of_convert,
    "divide": _bounds_of_divide,
    "maximum": lambda op, b: (max(b[0][0], b[1][0]), max(b[0][1], b[1][1])),
    "minimum": lambda op, b: (min(b[0][0], b[1][0]), min(b[0][1], b[1][1])),
    "multiply": lambda op, b: _corners(operator.mul, *b),
    "negate": lambda op, b: (-b[0][1], -b[0][0]),
    "not": _bounds_of_not,
    "or": _bounds_of_or,
    "popcnt": lambda op, b: (0, op.result.dtype.bits),
    "reduce": _bounds_of_reduce,
    "remainder": _bounds_of_remainder,
    "shift_right_arithmetic": _bounds_of_shift,
    "shift_right_logical": _bounds_of_shift,
    "sign": lambda op, b: (_sign(b[0][0]), _sign(b[0][1])),
    "subtract": lambda op, b: (b[0][0] - b[1][1], b[0][1] - b[1][0]),
}


# Ops of several results.


def _same_elements(op: Op, operands: Sequence[Known | None]) -> Sequence[Known | None]:
    """Each result has elements of one operand."""
    found = [(k.low, k.high) if k is not None else None for k in operands]
    return [bounded(v.type, *b) if b and is_counted(v.type) else None for v, b in zip(op.results, found, strict=True)]


def _top_k(op: Op, operands: Sequence[Known | None]) -> Sequence[Known | None]:
    values, places = op.results
    last = op.operands[0].shape[-1] - 1
    return (
        _same_elements_of(values, operands[0]),
        bounded(places.type, 0, last) if is_counted(places.type) and last >= 0 else None,
    )


def _same_elements_of(value: Value, known: Known | None) -> Known | None:
    return bounded(value.type, known.low, known.high) if known is not None and is_counted(value.type) else None


_SEVERAL: Mapping[str, Callable[[Op, Sequence[Known | None]], Sequence[Known | None]]] = {
    "reduce": _same_elements,
    "sort": _same_elements,
    "top_k": _top_k,
}
