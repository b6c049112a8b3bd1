"""callback: the function sees whole tensors, and returns its results to one device for all. inspect: no device does
anything."""

from __future__ import annotations

from collections.abc import Sequence

from ir.builder import RegionBuilder
from ir.mesh import AxisRef
from ir.ops.host import once_axes
from ir.ops.rule_helpers import types_attr
from ir.program import Value
from ir.types import DTYPES, pred
from passes.partition.context import OpContext
from passes.partition.registry import partitions
from passes.partition.shards import mask, uneven_dims


@partitions("callback")
def callback(c: OpContext) -> Sequence[Value]:
    """The first device calls, and the sum over all hands out what it gets. Shards are passed on without padding.

    What it got from another call it passes on itself; so if nobody else uses that, handing it out is left out later.
    """
    op, b = c.op, c.builder
    axes = once_axes(op.attrs, c.mesh)
    operands: list[Value] = []
    for i, (local, value, sharding) in enumerate(zip(c.operands, op.operands, c.strategy.operands, strict=True)):
        dims = uneven_dims(value.shape, sharding)
        operands.append(mask(b, local, op, i, sharding, dims, 0) if dims else c.of_the_caller.get((local, axes), local))
    results = list(c.emit(*operands, **{**op.attrs, "split": False}))
    for i in range(len(types_attr(op.attrs)) if axes else 0):
        given = results[i]
        with c.because("caller", axes, op.results[i]):
            results[i] = _handed_out(b, given, axes)
        c.of_the_caller[results[i], axes] = given
    return results


@partitions("inspect")
def inspect(c: OpContext) -> Sequence[Value]:
    return [c.operands[1]]


def _handed_out(b: RegionBuilder, value: Value, axes: tuple[AxisRef, ...]) -> Value:
    """To all devices the bits of what one has and the others have zeros of: their sum, which rounds nothing."""
    dtype = value.dtype
    if dtype == pred:
        return b.op("all_reduce", value, name=value.name, axes=axes, kind="or")
    if dtype.is_complex:
        parts = (_handed_out(b, b.op(part, value), axes) for part in ("real", "imag"))
        return b.op("complex", *parts, name=value.name)
    if not dtype.is_float:
        return b.op("all_reduce", value, name=value.name, axes=axes)
    bits = b.op("bitcast_convert", value, name="bits", dtype=DTYPES[f"u{dtype.bits}"])
    whole = b.op("all_reduce", bits, name="bits", axes=axes)
    return b.op("bitcast_convert", whole, name=value.name, dtype=dtype)
