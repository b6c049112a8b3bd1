"""constant, iota, random_bits: each device makes its own part."""

from __future__ import annotations

from collections.abc import Sequence

from ir.program import Value
from ir.types import TensorType, s32
from passes.partition.padding import shard_start, splat
from passes.partition.partitioner import OpContext


def constant(c: OpContext) -> Sequence[Value]:
    """A splat of the shard's shape; literals are never split."""
    return c.emit(value=c.op.attrs["value"], type=c.local_type())


def iota(c: OpContext) -> Sequence[Value]:
    """Counts from where the shard begins, in s32, so that rounding types round once as the whole iota does."""
    dim = c.op.attrs["dim"]
    assert isinstance(dim, int)
    result, axes = c.op.result, c.assignment.results[0].axes[dim]
    if not axes:
        return c.emit(type=c.local_type(), dim=dim)
    b, counter = c.builder, c.local_type().with_dtype(s32)
    position = b.op("iota", name="position", type=counter, dim=dim)
    start = shard_start(b, result.shape[dim], axes)
    start = b.op("broadcast_in_dim", start, name="start", shape=counter.shape, dims=())
    position = b.op("add", position, start, name=result.name)
    return (position if result.dtype == s32 else b.op("convert", position, name=result.name, dtype=result.dtype),)


def random_bits(c: OpContext) -> Sequence[Value]:
    """The shard's box of the draw: the same bits as the whole draw has there."""
    result, layout = c.op.result, c.assignment.results[0]
    if not any(layout.axes) or len(c.operands) > 1:
        return c.emit(*c.operands, type=c.local_type(), whole=c.op.attrs.get("whole", ()))
    zero = splat(c.builder, 0, TensorType((), s32))
    starts = [
        shard_start(c.builder, n, axes) if axes else zero for n, axes in zip(result.shape, layout.axes, strict=True)
    ]
    return c.emit(c.operands[0], *starts, type=c.local_type(), whole=result.shape)
