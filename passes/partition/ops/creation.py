"""constant, undefined, iota, random_bits, rng_bit_generator: each device makes its own part."""

from __future__ import annotations

from collections.abc import Sequence

from ir.ops.creation import generator_steps
from ir.program import Value
from ir.types import TensorType, s32
from passes.partition.context import OpContext
from passes.partition.registry import partitions
from passes.partition.shards import integer, positions, shard_start, splat


@partitions("constant")
def constant(c: OpContext) -> Sequence[Value]:
    """A splat of the shard's shape; literals are never split."""
    return c.emit(value=c.op.attrs["value"], type=c.local_type())


@partitions("undefined")
def undefined(c: OpContext) -> Sequence[Value]:
    """Nothing, of the shard's shape."""
    return c.emit(type=c.local_type())


@partitions("iota")
def iota(c: OpContext) -> Sequence[Value]:
    """Counts from the beginning of the shard, in s32, so that short floats are rounded once, as in the whole iota."""
    dim = c.op.attrs["dim"]
    assert isinstance(dim, int)
    result, axes = c.op.result, c.strategy.results[0].axes[dim]
    if not axes:
        return c.emit(type=c.local_type(), dim=dim)
    b = c.builder
    position = positions(b, c.local_type().shape, dim, shard_start(b, result.shape[dim], axes), result.name)
    return (position if result.dtype == s32 else b.op("convert", position, name=result.name, dtype=result.dtype),)


@partitions("random_bits")
def random_bits(c: OpContext) -> Sequence[Value]:
    """The shard's box of the draw, with the same bits as in the whole draw."""
    return _draw(c, 0)


@partitions("rng_bit_generator")
def rng_bit_generator(c: OpContext) -> Sequence[Value]:
    """The shard's box of the draw. The next state is computed from the state only, so that it is known to be the same
    on all devices."""
    b, before, name = c.builder, c.operands[0], c.op.results[0].name
    state, bits = _draw(c, 1)
    words, type = state.type.shape[0], state.type
    steps = b.op("constant", name="steps", value=(0, generator_steps(c.op.attrs), 0)[:words], type=type)
    after = b.op("add", before, steps, name=name)
    if words == 2:
        return after, bits
    less = b.op("compare", after, before, name="carry", direction="LT")
    carry = b.op("convert", b.op("slice", less, name="carry", start=(1,), limit=(2,)), name="carry", dtype=type.dtype)
    zero = splat(b, 0, TensorType((), type.dtype))
    return b.op("add", after, b.op("pad", carry, zero, name="carry", low=(2,), high=(0,)), name=name), bits


def _draw(c: OpContext, drawn: int) -> Sequence[Value]:
    """The op, drawing the shard of the result numbered `drawn`."""
    result, sharding, local = c.op.results[drawn], c.strategy.results[drawn], c.local_type(drawn)
    if not any(sharding.axes) or len(c.operands) > 1:
        return c.emit(*c.operands, **{**c.op.attrs, "type": local})
    zero = integer(c.builder, 0)
    starts = [
        shard_start(c.builder, n, axes) if axes else zero for n, axes in zip(result.shape, sharding.axes, strict=True)
    ]
    return c.emit(c.operands[0], *starts, **{**c.op.attrs, "type": local, "whole": result.shape})
