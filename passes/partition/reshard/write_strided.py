"""Writes the steps of a reshard along axes at any places of dims.

The digits that axes enter or leave are brought to the front of the shard as one dim of their own, along which the
collective or the slice runs; then they go where they belong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ir.builder import RegionBuilder
from ir.mesh import axes_size, merge_axes
from ir.program import DeviceOrder, Value
from passes.partition.exchange.affine import SCALAR
from passes.partition.exchange.box_exchange import Box, exchange
from passes.partition.reshard.steps import Retile, Rotate, Strided
from passes.partition.reshard.strided_sharding import DigitRef, StridedSharding, blocks
from passes.partition.shards import padding_of, resize, shard_index, splat, take_shard
from passes.sub_axes import SubAxes


def emit_strided(b: RegionBuilder, x: Value, step: Strided, name: str) -> Value:
    """The shard after the step."""
    if step.is_in_place:
        return _in_place(b, x, step, name)
    if step.kind == "all_gather":
        front = b.op("reshape", x, name=name, shape=(1, *x.shape))
    else:
        front = to_front(b, x, step.before, step.entered)
    moved = _along(b, front, step, 0, 0, name)
    if step.left:
        return from_front(b, moved, step.after, step.left)
    return _reshaped(b, moved, step.after.local_shape())


def _in_place(b: RegionBuilder, x: Value, step: Strided, name: str) -> Value:
    shape, (entered, left) = step.blocks
    split, concat = entered[0] if entered else -1, left[0] if left else -1
    x = _reshaped(b, x, tuple(1 if d == concat else n for d, n in enumerate(shape)))
    return _reshaped(b, _along(b, x, step, split, concat, name), step.after.local_shape())


def _along(b: RegionBuilder, x: Value, step: Strided, split: int, concat: int, name: str) -> Value:
    """The slice or collective, which cuts dim `split` and makes dim `concat`."""
    axes = merge_axes(step.axes)
    match step.kind:
        case "slice":
            return take_shard(b, x, split, shard_index(b, step.axes), 1)
        case "reduce_scatter":
            return b.op("reduce_scatter", x, name=name, axes=axes, dim=split, kind=step.reduction)
        case "all_to_all":
            return b.op("all_to_all", x, name=name, axes=axes, split=split, concat=concat)
        case "all_gather":
            return b.op("all_gather", x, name=name, axes=axes, dim=concat)


def emit_rotate(b: RegionBuilder, x: Value, step: Rotate, sub_axes: SubAxes, name: str) -> Value:
    """The shard after the step: one permute for each part."""
    parts = axes_size(step.axes)
    front = to_front(b, x, step.before, step.entered)
    target, source = (
        DeviceOrder(sub_axes.mesh, merge_axes(step.target)),
        DeviceOrder(sub_axes.mesh, merge_axes(step.source)),
    )
    positions = axes_size(step.target) // parts
    sends, receives = shard_index(b, step.sources), shard_index(b, step.axes)
    buffer = padding_of(b, front.type)
    for r in range(parts):
        part = take_shard(b, front, 0, _around(b, sends, -r, parts), 1)
        part = b.op("collective_permute", part, name=name, target=target, source=source, shift=r * positions)
        start = _around(b, receives, r, parts)
        zeros = [splat(b, 0, SCALAR)] * (part.type.rank - 1)
        buffer = b.op("dynamic_update_slice", buffer, part, start, *zeros, name=name)
    return from_front(b, buffer, step.after, step.left)


def emit_retile(b: RegionBuilder, x: Value, shape: Sequence[int], step: Retile) -> Value:
    """The shard with other sizes."""
    sizes = step.after.local_shape()
    for dim, (axes, n, size) in enumerate(zip(step.before.axes, shape, sizes, strict=True)):
        if x.shape[dim] == size:
            continue
        x = exchange(b, x, dim, n, axes, Box(0, size, size)) if axes else resize(b, x, dim, size)
    return x


def to_front(b: RegionBuilder, x: Value, tiling: StridedSharding, places: Sequence[DigitRef]) -> Value:
    """The shard with the digits at these places, which are whole in `tiling`, as one first dim, in that order."""
    shape, (front,) = blocks(tiling, places)
    rest = [d for d in range(len(shape)) if d not in front]
    x = _transposed(b, _reshaped(b, x, shape), (*front, *rest))
    sizes = list(tiling.local_shape())
    for i, j in places:
        sizes[i] //= tiling.dims[i][j].size
    return _reshaped(b, x, (math.prod(shape[d] for d in front), *sizes))


def from_front(b: RegionBuilder, x: Value, tiling: StridedSharding, places: Sequence[DigitRef]) -> Value:
    """The inverse of `to_front`."""
    shape, (front,) = blocks(tiling, places)
    order = (*front, *(d for d in range(len(shape)) if d not in front))
    x = _reshaped(b, x, tuple(shape[d] for d in order))
    x = _transposed(b, x, tuple(order.index(d) for d in range(len(shape))))
    return _reshaped(b, x, tiling.local_shape())


def _around(b: RegionBuilder, index: Value, by: int, parts: int) -> Value:
    """index + by, counted around."""
    if by % parts == 0:
        return index
    total = b.op("add", index, splat(b, by % parts, index.type), name="part")
    return b.op("remainder", total, splat(b, parts, index.type), name="part")


def _reshaped(b: RegionBuilder, x: Value, shape: tuple[int, ...]) -> Value:
    return x if x.shape == shape else b.op("reshape", x, name=x.name, shape=shape)


def _transposed(b: RegionBuilder, x: Value, perm: tuple[int, ...]) -> Value:
    return x if perm == tuple(range(len(perm))) else b.op("transpose", x, name=x.name, perm=perm)
