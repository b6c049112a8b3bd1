"""Folding of ops on integers whose operands are all known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ir.ops.elementwise import COMPARES
from ir.ops.rule_helpers import int_attr, ints_attr
from ir.program import Op
from ir.registry import Registry
from ir.types import DType
from passes.optimize.fold.facts import MAX_ENUMERATED, IntegerFact, Numbers, enumerated, limits, numbers_of


def numbers_of_op(op: Op, operands: Sequence[IntegerFact | None]) -> IntegerFact | None:
    rule = _EXACT.get(op.name)
    if rule is None or op.result.type.size > MAX_ENUMERATED:
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
    """The numbers wrapped to an integer type. Booleans are 0 and 1 already."""
    if dtype.kind == "pred":
        return np.array([int(n) for n in numbers.reshape(-1)], object).reshape(numbers.shape)
    low, _ = limits(dtype)
    return np.asarray((numbers - low) % 2**dtype.bits + low, object)


Exact = Callable[[Op, Sequence[Numbers]], Any]

_EXACT: Registry[Exact] = Registry(
    {
        "abs": lambda op, a: abs(a[0]),
        "add": lambda op, a: a[0] + a[1],
        "and": lambda op, a: a[0] & a[1],
        "compare": lambda op, a: COMPARES[str(op.attrs["direction"])](*a),
        "clamp": lambda op, a: np.minimum(np.maximum(a[0], a[1]), a[2]),
        "concatenate": lambda op, a: np.concatenate(a, int_attr(op.attrs, "dim")),
        "convert": lambda op, a: a[0] != 0 if op.result.dtype.kind == "pred" else a[0],
        "maximum": lambda op, a: np.maximum(a[0], a[1]),
        "minimum": lambda op, a: np.minimum(a[0], a[1]),
        "multiply": lambda op, a: a[0] * a[1],
        "negate": lambda op, a: -a[0],
        "not": lambda op, a: 1 - a[0] if op.result.dtype.kind == "pred" else -1 - a[0],
        "or": lambda op, a: a[0] | a[1],
        "reshape": lambda op, a: a[0].reshape(op.result.shape),
        "reverse": lambda op, a: np.flip(a[0], ints_attr(op.attrs, "dims")),
        "select": lambda op, a: np.where(a[0].astype(bool), a[1], a[2]),
        "subtract": lambda op, a: a[0] - a[1],
        "transpose": lambda op, a: a[0].transpose(ints_attr(op.attrs, "perm")),
        "xor": lambda op, a: a[0] ^ a[1],
    }
)


@_EXACT.of("broadcast_in_dim")
def _numbers_of_broadcast(op: Op, arrays: Sequence[Numbers]) -> Any:
    dims, shape = ints_attr(op.attrs, "dims"), op.result.shape
    order = sorted(range(len(dims)), key=lambda i: dims[i])
    sizes = {dims[i]: op.operands[0].shape[i] for i in order}
    placed = arrays[0].transpose(order).reshape([sizes.get(d, 1) for d in range(len(shape))])
    return np.broadcast_to(placed, shape)


@_EXACT.of("slice")
def _numbers_of_slice(op: Op, arrays: Sequence[Numbers]) -> Any:
    start, limit = ints_attr(op.attrs, "start"), ints_attr(op.attrs, "limit")
    return arrays[0][tuple(map(slice, start, limit, ints_attr(op.attrs, "stride") or (1,) * len(start)))]


@_EXACT.of("divide")
def _numbers_of_divide(op: Op, arrays: Sequence[Numbers]) -> Any:
    """Rounds towards zero. The divisors 0 and -1 are special cases."""
    x, y = arrays
    return abs(x) // y * np.where(x < 0, -1, 1) if np.all(y > 0) else None


@_EXACT.of("remainder")
def _numbers_of_remainder(op: Op, arrays: Sequence[Numbers]) -> Any:
    x, y = arrays
    return abs(x) % y * np.where(x < 0, -1, 1) if np.all(y > 0) else None


@_EXACT.of("reduce")
def _numbers_of_reduce(op: Op, arrays: Sequence[Numbers]) -> Any:
    logical = op.result.dtype.kind == "pred"
    reducers: dict[str, np.ufunc] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
    if logical:
        reducers |= {"and": np.minimum, "or": np.maximum}
    reducer = reducers.get(str(op.attrs["kind"]))
    return reducer.reduce(arrays[0], axis=ints_attr(op.attrs, "dims")) if reducer is not None else None
