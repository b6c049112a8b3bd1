"""callback: the function is called with whole tensors on one device, which sends the results to all. inspect: has no
effect on any device."""

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
    """The first device calls the function, and a sum over all devices broadcasts its results. Shards are passed without
    padding.

    A result of an earlier call is passed on by the device itself, so its broadcast is dropped later if nothing else
    uses it.
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
    """Broadcasts the bits of a value that one device has, and for which the others have zeros: their sum, which rounds
    nothing."""
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
