"""Kernels of reduce and of the cumulative ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ir.ops.reduction import reduction_kind
from ir.ops.rule_helpers import int_attr, ints_attr
from ir.program import Op
from ir.types import Array, dtype_of
from lowering.reference.arrays import combine, identity, order_zeros, widen
from lowering.reference.interpreter import Interpreter, kernel


@kernel("reduce")
def _reduce(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    dims = tuple(machine.lead + d for d in ints_attr(op.attrs, "dims"))
    kind = reduction_kind(op.attrs)
    if kind is not None:
        return (combine(kind, arrays[0], dims),)
    values, indices = np.broadcast_arrays(*arrays)
    return _arg_extreme(_flatten(values, dims), _flatten(indices, dims), largest=op.attrs["kind"] == "argmax")


def _flatten(x: Array, dims: tuple[int, ...]) -> Array:
    """Transposes and reshapes so that the dims are one, the last."""
    kept = tuple(d for d in range(x.ndim) if d not in dims)
    shape = tuple(x.shape[d] for d in kept)
    return x.transpose(*kept, *dims).reshape((*shape, math.prod(x.shape[d] for d in dims)))


def _arg_extreme(values: Array, indices: Array, *, largest: bool) -> tuple[Array, Array]:
    """The extreme value of each row and its index: a NaN wins, and the lower index wins a tie."""
    if values.shape[-1] == 0:
        dtype = dtype_of(values.dtype)
        shape = values.shape[:-1]
        nothing = np.broadcast_to(identity("max" if largest else "min", dtype), shape)
        return nothing, np.zeros(shape, indices.dtype)
    wide = widen(values)
    extreme = np.max(wide, -1, keepdims=True) if largest else np.min(wide, -1, keepdims=True)
    wins = wide == extreme
    if wide.dtype.kind == "f":
        wins |= np.isnan(wide)
    last = dtype_of(indices.dtype).highest
    candidates = np.where(wins, indices, np.array(last, indices.dtype))
    lowest = np.min(candidates, -1, keepdims=True)
    first = np.argmax(wins & (candidates == lowest), -1, keepdims=True)
    return np.take_along_axis(values, first, -1)[..., 0], np.take_along_axis(indices, first, -1)[..., 0]


_CUMULATIVE: dict[str, Callable[[Array, int], Array]] = {
    "cumsum": lambda x, dim: np.cumsum(x, dim, x.dtype) + np.zeros((), x.dtype),
    "cumprod": lambda x, dim: np.cumprod(x, dim, x.dtype),
    "cummax": lambda x, dim: _running_extreme(x, dim, largest=True),
    "cummin": lambda x, dim: _running_extreme(x, dim, largest=False),
}


@kernel(*_CUMULATIVE)
def _cumulative(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    x = widen(arrays[0])
    dim = machine.lead + int_attr(op.attrs, "dim")
    backward = bool(op.attrs["reverse"])
    x = np.flip(x, dim) if backward else x
    prefixes = _CUMULATIVE[op.name](x, dim)
    prefixes = np.flip(prefixes, dim) if backward else prefixes
    return (prefixes.astype(op.result.dtype.numpy, copy=False),)


def _running_extreme(x: Array, dim: int, *, largest: bool) -> Array:
    """NaN from the first NaN on. Among zeros, the one of the winning sign is kept from its first occurrence on."""
    result: Array = (np.maximum if largest else np.minimum).accumulate(x, dim)
    return order_zeros(result, (x,), partial(np.logical_or.accumulate, axis=dim), largest=largest)
