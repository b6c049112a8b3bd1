"""Boxes whose starts are constants, where the dims lie split in which they have a part only.

Who needs what is then known: a dynamic_slice is a slice, and an update is padded to the operand's shape and selected.
Both are exchanges of boxes, where at computed starts what is read must be summed, and what is written gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ir.builder import RegionBuilder
from ir.ops.addressing import scatter_addressing
from ir.ops.indexing import scatter_reduction
from ir.ops.rules import int_attr
from ir.program import Attr, Op, Value
from ir.sharding import DimSharding, ReductionKind, Sharding
from ir.types import TensorType, s32

Ints = npt.NDArray[Any]
Makers = Mapping[Value, Op]
IsSplit = Callable[[Value, int], bool]

_FOLDED = ("broadcast_in_dim", "concatenate", "constant", "reshape", "shard")
_MAX_NUMBERS = 16
_COMBINE = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}


def makers_of(ops: Iterable[Op]) -> Makers:
    """What makes the values that may be known."""
    return {op.result: op for op in ops if op.name in _FOLDED and op.result.type.size <= _MAX_NUMBERS}


def with_static_starts(op: Op, makers: Makers, is_split: IsSplit) -> Sequence[Op]:
    """Ops that do the same; the op itself where its starts are not known, or nothing is split that it has a part of."""
    match op.name:
        case "dynamic_slice":
            return _read(op, makers, is_split)
        case "dynamic_update_slice":
            return _overwritten(op, makers, is_split)
        case "scatter":
            return _scattered(op, makers, is_split)
        case _:
            return (op,)


def _read(op: Op, makers: Makers, is_split: IsSplit) -> Sequence[Op]:
    x, sizes = op.operands[0], op.result.shape
    start = _clamped_starts(op.operands[1:], x.shape, sizes, makers)
    if start is None or not any(is_split(x, d) for d in _partial_dims(sizes, x.shape)):
        return (op,)
    limit = tuple(s + n for s, n in zip(start, sizes, strict=True))
    attrs: dict[str, Attr] = {"start": start, "limit": limit, "stride": ()}
    return (replace(op, name="slice", operands=(x,), attrs=attrs),)


def _overwritten(op: Op, makers: Makers, is_split: IsSplit) -> Sequence[Op]:
    x, update, *starts = op.operands
    start = _clamped_starts(starts, x.shape, update.shape, makers)
    if start is None or not any(is_split(update, d) for d in _partial_dims(update.shape, x.shape)):
        return (op,)
    return _written(_builder(op), op, update, start, None)


def _scattered(op: Op, makers: Makers, is_split: IsSplit) -> Sequence[Op]:
    """A scatter of one box, which lies inside."""
    x, indices, updates = op.operands
    a = scatter_addressing(op)
    index = _known(indices, makers) if indices.type.size == len(a.addressed) and not a.shared else None
    partial = _partial_dims(a.sizes, x.shape)
    if index is None or not any(is_split(updates, s) for d, s in a.window if d in partial):
        return (op,)
    places = dict(zip(a.addressed, (int(i) for i in index.reshape(-1)), strict=True))
    start = tuple(places.get(d, 0) for d in range(x.type.rank))
    if any(not 0 <= s <= n - size for s, n, size in zip(start, x.shape, a.sizes, strict=True)):
        return (op,)
    b, window = _builder(op), dict(a.window)
    if updates.shape != a.sizes:
        sharding = updates.sharding and _of_dims(updates.sharding, [window.get(d) for d in range(x.type.rank)])
        updates = b.op("reshape", updates, name=updates.name, sharding=sharding, shape=a.sizes)
    return _written(b, op, updates, start, scatter_reduction(op.attrs))


def _written(
    b: RegionBuilder, op: Op, update: Value, start: tuple[int, ...], kind: ReductionKind | None
) -> Sequence[Op]:
    """The update, padded, where it lies in the operand, or what it is combined to with the operand there."""
    x, like = op.operands[0], op.result.sharding
    zero = b.op("constant", name="fill", value=False if x.dtype.kind == "pred" else 0, type=TensorType((), x.dtype))
    end = tuple(s + n for s, n in zip(start, update.shape, strict=True))
    high = tuple(n - e for n, e in zip(x.shape, end, strict=True))
    new = b.op("pad", update, zero, name=update.name, sharding=like, low=start, high=high)
    if kind is not None:
        new = b.op(_COMBINE[kind], x, new, name=op.result.name, sharding=like)
    counter = x.type.with_dtype(s32)
    inside: Value | None = None
    for d in _partial_dims(update.shape, x.shape):
        position = b.op("iota", name="position", sharding=like, type=counter, dim=d)
        for bound, direction in ((start[d], "GE"), (end[d], "LT")):
            limit = b.op("constant", name="bound", sharding=like, value=bound, type=counter)
            side = b.op("compare", position, limit, name="inside", sharding=like, direction=direction)
            inside = side if inside is None else b.op("and", inside, side, name="inside", sharding=like)
    assert inside is not None
    b.op("select", inside, new, x, name=op.result.name)
    return (*b.ops[:-1], replace(b.ops[-1], results=op.results))


def _builder(op: Op) -> RegionBuilder:
    b = RegionBuilder()
    b.span, b.note = op.span, op.note
    return b


def _partial_dims(sizes: Sequence[int], shape: Sequence[int]) -> list[int]:
    """The dims of which a box has not all."""
    return [d for d, (size, n) in enumerate(zip(sizes, shape, strict=True)) if size != n]


def _of_dims(sharding: Sharding, dims: Sequence[int | None]) -> Sharding:
    """The sharding of a tensor with these dims of another; None are dims of its own."""
    return replace(sharding, dims=tuple(sharding.dims[d] if d is not None else DimSharding() for d in dims))


# What is known.


def _clamped_starts(
    starts: Sequence[Value], shape: Sequence[int], sizes: Sequence[int], makers: Makers
) -> tuple[int, ...] | None:
    known = [_known(start, makers) for start in starts]
    found = [int(k) for k in known if k is not None]
    if len(found) < len(known):
        return None
    return tuple(min(max(s, 0), n - size) for s, n, size in zip(found, shape, sizes, strict=True))


def _known(value: Value, makers: Makers) -> Ints | None:
    """The numbers of a small tensor of integers, if they are known; of broadcasts, where all are one number."""
    op = makers.get(value)
    if op is None or not value.dtype.is_integer:
        return None
    if op.name == "constant":
        return np.broadcast_to(np.array(op.attrs["value"], object), value.shape)
    parts = [_known(v, makers) for v in op.operands]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    if op.name == "concatenate":
        return np.concatenate(found, int_attr(op.attrs, "dim"))
    return np.resize(found[0], value.shape) if op.name != "broadcast_in_dim" or found[0].size == 1 else None
