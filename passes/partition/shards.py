"""Local arithmetic around shards: where a shard begins, growing and cutting dims, masking padding.

A dim of size n split p ways has shards of ceil(n/p); what is beyond n is arbitrary (GShard, section 3.3.3). An op in
which it could reach a real element masks it with `select`, never by multiplying, because it may be NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ir.builder import RegionBuilder
from ir.causes import Cause
from ir.mesh import Axes, axes_size, merge_axes
from ir.ops.layout import slice_along
from ir.program import Attr, Op, Value
from ir.sharding import shard_size
from ir.types import TensorType, s32
from passes.partition.closed_sharding import ClosedSharding


def is_zero(value: Attr) -> bool:
    """Whether it is a number whose bits are all 0: False, 0 and 0.0, and not -0.0."""
    if isinstance(value, complex):
        return is_zero(value.real) and is_zero(value.imag)
    return isinstance(value, (bool, int, float)) and value == 0 and math.copysign(1, value) > 0


def splat(b: RegionBuilder, value: complex | float | int | bool, type: TensorType) -> Value:
    """A constant tensor of one value."""
    return b.op("constant", name="fill", value=value, type=type)


def integer(b: RegionBuilder, k: int) -> Value:
    """The integer as a scalar, s32[]."""
    return splat(b, k, TensorType((), s32))


def padding_of(b: RegionBuilder, type: TensorType) -> Value:
    """A tensor that holds nothing."""
    return b.op("undefined", name="padding", type=type)


def shard_index(b: RegionBuilder, axes: Axes) -> Value:
    """The device's position along the axes, s32[]."""
    return b.op("axis_index", name="index", axes=merge_axes(axes))


def shard_start(b: RegionBuilder, n: int, axes: Axes) -> Value:
    """The first index, s32[], of the device's shard of a dim of size n."""
    chunk = integer(b, shard_size(n, axes))
    return b.op("multiply", shard_index(b, axes), chunk, name="start")


def on_the_first(b: RegionBuilder, x: Value, axes: Axes, elsewhere: complex, name: str = "") -> Value:
    """`x` on the first device along the axes, `elsewhere` on the others: the identity of the sum or product by which
    they are put together.

    If `x` is known to be the identity, it is `x` on all of them: sums that begin from 0.0 never end in -0.0, so it does
    not matter that the exact identity of a sum is -0.0.
    """
    if b.constants.get(x) == elsewhere:
        return x
    index = shard_index(b, axes)
    first = b.op("compare", index, splat(b, 0, index.type), name="first", direction="EQ")
    return b.op("select", first, x, splat(b, elsewhere, x.type), name=name or x.name)


def positions(b: RegionBuilder, shape: tuple[int, ...], dim: int, start: Value, name: str = "position") -> Value:
    """For each element of that shape its index along a dim, counted from `start`, s32[]."""
    counted = b.op("iota", name="position", type=TensorType(shape, s32), dim=dim)
    start = b.op("broadcast_in_dim", start, name="start", shape=shape, dims=())
    return b.op("add", counted, start, name=name)


def resize(b: RegionBuilder, x: Value, dim: int, size: int, fill: Value | None = None) -> Value:
    """`x` with a dim cut off at, or padded at its end to, `size`; without `fill`, a scalar, by arbitrary elements."""
    have = x.shape[dim]
    if have == size:
        return x
    if have > size:
        return b.op("slice", x, name=x.name, **slice_along(x.shape, dim, 0, size))
    fill = fill if fill is not None else padding_of(b, TensorType((), x.dtype))
    high = tuple(size - have if d == dim else 0 for d in range(x.type.rank))
    return b.op("pad", x, fill, name=x.name, low=(0,) * x.type.rank, high=high)


def take_shard(b: RegionBuilder, x: Value, dim: int, start: Value, size: int, name: str = "") -> Value:
    """`size` elements of a dim from `start` on."""
    zero = integer(b, 0) if x.type.rank > 1 else start
    starts = [start if d == dim else zero for d in range(x.type.rank)]
    sizes = tuple(size if d == dim else n for d, n in enumerate(x.shape))
    return b.op("dynamic_slice", x, *starts, name=name or x.name, sizes=sizes)


def put_shard(b: RegionBuilder, x: Value, part: Value, dim: int, start: Value) -> Value:
    """`x` with `part` in place of what a dim has from `start` on."""
    zero = integer(b, 0) if x.type.rank > 1 else start
    starts = [start if d == dim else zero for d in range(x.type.rank)]
    return b.op("dynamic_update_slice", x, part, *starts, name=part.name)


def uneven_dims(shape: Sequence[int], sharding: ClosedSharding) -> list[int]:
    """The dims that the sharding splits unevenly: their last shards hold padding."""
    return [d for d, (n, axes) in enumerate(zip(shape, sharding.axes, strict=True)) if n % axes_size(axes)]


def mask(
    b: RegionBuilder,
    x: Value,
    op: Op,
    operand: int,
    sharding: ClosedSharding,
    dims: Sequence[int],
    fill: complex | float | int | bool,
) -> Value:
    """`x`, the shard in `sharding` of an operand of an op, with `fill` for the padding of `dims`."""
    if not dims:
        return x
    value = op.operands[operand]
    with b.at(b.span, Cause("mask", op.name, operand, op.label, values=(value.name,))):
        for dim in dims:
            n, axes = value.shape[dim], sharding.axes[dim]
            position = positions(b, x.shape, dim, shard_start(b, n, axes))
            real = b.op("compare", position, splat(b, n, position.type), name="real", direction="LT")
            x = b.op("select", real, x, splat(b, fill, x.type), name=x.name)
    return x
