"""Writes the steps of a reshard plan as ops."""

from __future__ import annotations

from collections.abc import Sequence

from ir.builder import RegionBuilder
from ir.mesh import Axes, axes_size, merge_axes, without_minor
from ir.ops.indexing import owner_reduction
from ir.ops.reduction import identity_of
from ir.program import DeviceOrder, Value
from ir.sharding import ReductionKind
from ir.types import DType, TensorType, s32
from passes.partition.closed_sharding import ClosedSharding, device_orders
from passes.partition.exchange.box_exchange import Box, exchange
from passes.partition.reshard.steps import (
    AllToAll,
    Gather,
    MakePartial,
    Permute,
    Reduce,
    ReduceScatter,
    Reorder,
    Retile,
    Rotate,
    Slice,
    Spread,
    Step,
    Strided,
)
from passes.partition.reshard.strided_sharding import StridedSharding
from passes.partition.reshard.write_strided import emit_retile, emit_rotate, emit_strided
from passes.partition.shards import put_shard, resize, shard_index, shard_start, splat, take_shard, zero_of
from passes.sub_axes import SubAxes


def emit_step(
    b: RegionBuilder,
    x: Value,
    shape: Sequence[int],
    step: Step,
    after: ClosedSharding | StridedSharding,
    sub_axes: SubAxes,
    name: str,
) -> Value:
    """The shard in layout `after` of a tensor of that global shape, from its shard `x` in the layout before the step.

    The ops written are called `name`.
    """
    local = after.local_shape(shape)
    if 0 in local or 0 in x.shape:
        return splat(b, zero_of(x.dtype), x.type.with_shape(local))
    match step:
        case Gather(dim, axes):
            x = b.op("all_gather", x, name=name, axes=merge_axes(axes), dim=dim)
            return _retile(b, x, dim, shape[dim], after.axes[dim], local[dim])
        case Slice(dim, axes):
            chunk = local[dim]
            outer = without_minor(after.axes[dim], axes)
            x = _retile(b, x, dim, shape[dim], outer, chunk * axes_size(axes))
            return take_shard(b, x, dim, _start(b, shape[dim], outer, axes, chunk), chunk)
        case AllToAll(axes, source, target):
            outer = without_minor(after.axes[target], axes)
            x = _retile(b, x, target, shape[target], outer, local[target] * axes_size(axes))
            x = b.op("all_to_all", x, name=name, axes=merge_axes(axes), split=target, concat=source)
            return _retile(b, x, source, shape[source], after.axes[source], local[source])
        case Permute(target_axes, source_axes):
            orders = (
                DeviceOrder(sub_axes.mesh, merge_axes(target_axes)),
                DeviceOrder(sub_axes.mesh, merge_axes(source_axes)),
            )
            return b.op("collective_permute", x, name=name, target=orders[0], source=orders[1])
        case Reduce(axes, kind):
            return b.op("all_reduce", x, name=name, axes=merge_axes(axes), kind=_kind(kind, x.dtype))
        case ReduceScatter(axes, kind, dim):
            outer = without_minor(after.axes[dim], axes)
            x = _retile(b, x, dim, shape[dim], outer, local[dim] * axes_size(axes))
            return b.op("reduce_scatter", x, name=name, axes=merge_axes(axes), dim=dim, kind=_kind(kind, x.dtype))
        case MakePartial(axes, kind):
            if kind not in ("sum", "prod"):
                return x
            index = shard_index(b, axes)
            first = b.op("compare", index, splat(b, 0, index.type), name="first", direction="EQ")
            return b.op("select", first, x, splat(b, _neutral(kind, x.dtype), x.type), name=name)
        case Spread(axes, kind, dim):
            chunk, parts = x.shape[dim], axes_size(axes)
            room = tuple(chunk * parts if d == dim else n for d, n in enumerate(x.shape))
            start = b.op("multiply", shard_index(b, axes), splat(b, chunk, TensorType((), s32)), name="start")
            x = put_shard(b, splat(b, _neutral(kind, x.dtype), x.type.with_shape(room)), x, dim, start)
            return resize(b, x, dim, local[dim])
        case Reorder(source_mesh, target_mesh):
            other = source_mesh or target_mesh
            assert other is not None
            home, away = device_orders(sub_axes, other)
            target_order, source_order = (home, away) if target_mesh is None else (away, home)
            return b.op("collective_permute", x, name=name, target=target_order, source=source_order)
        case Strided():
            return emit_strided(b, x, step, name)
        case Rotate():
            return emit_rotate(b, x, step, sub_axes, name)
        case Retile():
            return emit_retile(b, x, shape, step)


def _kind(kind: ReductionKind, dtype: DType) -> ReductionKind:
    """The reduction as it is called for that type: what is spread among zeros may have no sum."""
    return owner_reduction(dtype) if kind == "sum" else kind


def _neutral(kind: ReductionKind, dtype: DType) -> complex | float | int | bool:
    """What the reduction leaves as it is to the bit."""
    return zero_of(dtype) if kind == "sum" else identity_of(kind, dtype)


def _retile(b: RegionBuilder, x: Value, dim: int, n: int, axes: Axes, size: int) -> Value:
    """`x`, a shard over `axes` of a dim of size n, with `size` elements a shard.

    A whole dim is cut or padded at its end; between shards of other sizes the boundaries shift.
    """
    if not axes:
        return resize(b, x, dim, size)
    return x if x.shape[dim] == size else exchange(b, x, dim, n, axes, Box(0, size, size))


def _start(b: RegionBuilder, n: int, outer: Axes, inner: Axes, chunk: int) -> Value:
    """Where the device's new shard begins within its old one."""
    if not outer:
        return shard_start(b, n, inner)
    return b.op("multiply", shard_index(b, inner), splat(b, chunk, TensorType((), s32)), name="start")
