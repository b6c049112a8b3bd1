"""Sliding windows on shards: each device gets the box that its windows read, with the reduction's identity around the
tensor, and slides them over it without padding (GShard, section A.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ir.builder import RegionBuilder
from ir.mesh import Axes
from ir.ops.reduction import identity_of, reduction_kind
from ir.ops.window import Window, padding_value, window_of
from ir.program import Attr, Op, Value
from ir.sharding import shard_size
from ir.types import DType, TensorType, f32
from passes.partition.context import OpContext
from passes.partition.exchange.affine import position, written
from passes.partition.exchange.box_exchange import Box
from passes.partition.exchange.halo import MAX_RUNS, Halo, receivers_of, whole_or_spread, window_halo
from passes.partition.registry import partitions
from passes.partition.shards import positions, splat, take_shard


def reduce_window_halo(op: Op, dim: int, axes: Axes) -> Sequence[Halo]:
    """A shard of the result has as many windows as elements."""
    return (window_halo(dim, window_of(op)[dim], op.result.shape[dim], axes).need,)


@dataclass(frozen=True, slots=True)
class ScatterHalo:
    """The windows that overlap a shard of a select_and_scatter's result, along one dim.

    `source` is a box of these windows, `operand` a box of the elements that they read and of the shard, which begins
    `shard` elements into it. `low` and `high` are the elements of the box beside the windows, as (negative) padding.
    """

    operand: Halo
    source: Halo
    stride: int
    shard: int
    low: int
    high: int


def scatter_halo(op: Op, dim: int, axes: Axes) -> ScatterHalo:
    """If windows begin at different offsets in the shards, one is taken at each element, and most of these scatter
    nothing."""
    window = window_of(op)[dim]
    n, real = op.result.shape[dim], op.operands[1].shape[dim]
    chunk, behind = shard_size(n, axes), window.stride * (real - 1) - window.low + window.size
    receivers = max(1, receivers_of(n, axes) if behind >= n else -(-behind // chunk))
    stride, holes = (window.stride, 1) if chunk % window.stride == 0 else (1, window.stride)
    first = (window.low - window.size) // stride + 1
    last = (chunk + window.low - 1) // stride
    count = max(1, last - first + 1)
    begin, length = stride * first - window.low, stride * (count - 1) + window.size
    start, end = min(begin, 0), max(begin + length, chunk)
    touch = (n - 1 + window.low) // window.stride * holes + 1
    box = Box(start, chunk, end - start, end=behind, receivers=receivers)
    touching = Box(first, chunk // stride, count, end=touch, receivers=receivers)
    return ScatterHalo(
        whole_or_spread(0, dim, box, (box,) if holes == 1 else _seen_by_touching(window, box, chunk), 1),
        whole_or_spread(1, dim, touching, (replace(touching, every=holes),), holes),
        stride,
        -start,
        start - begin,
        begin + length - end,
    )


def _seen_by_touching(window: Window, box: Box, chunk: int) -> Sequence[Box]:
    """What windows read that begin at different offsets in the shards: the elements of each window, as far apart as the
    windows."""
    size, stride = window.size, window.stride
    if min(size, stride) > MAX_RUNS:
        return (box,)
    parts: list[Box] = []
    for k in range(min(size, stride)):
        alike = (size - 1 - k) // stride * stride
        length = chunk + size - 1 + alike
        parts.append(replace(box, start=k + 1 - size, size=length, every=stride, phase=k - window.low))
    return parts


def select_and_scatter_halo(op: Op, dim: int, axes: Axes) -> Sequence[Halo]:
    """A shard of the result is the sum of what the windows that overlap it scatter."""
    found = scatter_halo(op, dim, axes)
    return found.operand, found.source


def zero(b: RegionBuilder, dtype: DType) -> Value:
    """The scalar zero, or false."""
    return splat(b, _zero_of(dtype), TensorType((), dtype))


def empty_result(c: OpContext) -> Value:
    """A result without computation: it has no elements, or only zeros."""
    return splat(c.builder, _zero_of(c.op.result.dtype), c.local_type())


def _zero_of(dtype: DType) -> float | int | bool:
    return identity_of("or" if dtype.kind == "pred" else "sum", dtype)


def local_settings(windows: Sequence[Window], names: Mapping[str, str] | None = None) -> dict[str, Attr]:
    """The window attributes that a box may change, by the op's own `names` for them; defaults are left out."""
    values = {
        "stride": [w.stride for w in windows],
        "base_dilation": [w.base_dilation for w in windows],
        "window_dilation": [w.dilation for w in windows],
    }
    settings = {name: () if set(given) <= {1} else tuple(given) for name, given in values.items()}
    padding = any(w.low or w.high for w in windows)
    settings["padding_low"] = tuple(w.low for w in windows) if padding else ()
    settings["padding_high"] = tuple(w.high for w in windows) if padding else ()
    return {(names or {}).get(name, name): given for name, given in settings.items()}


@partitions("reduce_window", halo=reduce_window_halo)
def reduce_window(c: OpContext) -> Sequence[Value]:
    """Reduces the box, which is filled with the identity of the reduction."""
    if 0 in c.local_type().shape:
        return (empty_result(c),)
    kind, x = reduction_kind(c.op.attrs), c.operands[0]
    assert kind is not None
    windows = list(window_of(c.op))
    for dim, axes in enumerate(c.strategy.results[0].axes):
        window = windows[dim]
        if not axes or window.is_pointwise:
            continue
        fill = splat(c.builder, identity_of(kind, x.dtype), TensorType((), x.dtype))
        halo_window = window_halo(dim, window, c.op.result.shape[dim], axes)
        x = c.exchanged(halo_window.need, of=x, fill=fill)
        windows[dim] = halo_window.local(window)
    return c.emit(x, **{**c.op.attrs, **local_settings(windows)})


@partitions("select_and_scatter", halo=select_and_scatter_halo)
def select_and_scatter(c: OpContext) -> Sequence[Value]:
    """The windows that overlap the device's shard scatter into the elements that they read; the shard is cut out.

    Padding is never selected, but only some devices' boxes contain any. There each element of padding is a copy of the
    nearest element of the tensor: that changes nothing in any order of comparison, except that a copy may be selected
    in place of its original. So what copies receive is added to the originals. Explicit padding values fill the boxes.
    """
    if 0 in c.local_type().shape or 0 in c.op.operands[1].shape:
        return (empty_result(c),)
    split = {
        dim: axes
        for dim, (axes, window) in enumerate(zip(c.strategy.results[0].axes, window_of(c.op), strict=True))
        if axes and not window.is_pointwise
    }
    if not split:
        return c.emit(*c.operands, **c.op.attrs)
    b, (operand, source) = c.builder, c.operands
    windows = list(window_of(c.op))
    found = {dim: scatter_halo(c.op, dim, axes) for dim, axes in split.items()}
    value = padding_value(c.op)
    for dim, t in found.items():
        padding = splat(b, value, TensorType((), operand.dtype)) if value is not None else None
        fills = padding, zero(b, source.dtype)
        operand, source = c.all_exchanged((t.operand, t.source), of=(operand, source), fills=fills)
        if _meets_padding(c, dim):
            operand = _with_copies(c, operand, t, split[dim])
            source = _of_real_windows(c, source, t, split[dim])
        windows[dim] = replace(windows[dim], stride=t.stride, low=t.low, high=t.high)
    folded = [dim for dim in found if _meets_padding(c, dim)]
    dtype = operand.dtype
    if folded and dtype.is_float and dtype.nbytes < f32.nbytes:
        operand, source = (b.op("convert", x, name=x.name, dtype=f32) for x in (operand, source))
    settings = local_settings(windows)
    (x,) = c.emit(operand, source, **{name: settings.get(name, value) for name, value in c.op.attrs.items()})
    for dim in folded:
        x = _folded(c, x, found[dim], split[dim])
    x = _cut(c, x, found)
    return (x if x.dtype == dtype else b.op("convert", x, name=x.name, dtype=dtype),)


def _meets_padding(c: OpContext, dim: int) -> bool:
    """Whether windows extend beyond the tensor, into padding that is never selected."""
    if padding_value(c.op) is not None:
        return False
    n, window = c.op.operands[0].shape[dim], window_of(c.op)[dim]
    count = c.op.operands[1].shape[dim]
    return window.low > 0 or window.stride * (count - 1) - window.low + window.size > n


def _positions(b: RegionBuilder, x: Value, need: Halo, axes: Axes) -> Value:
    """The index in the tensor of each element of a box."""
    start = written(b, position(b, axes) * need.box.step + need.box.start)
    return positions(b, x.shape, need.dim, start)


def _compare(b: RegionBuilder, index: Value, number: int, direction: str) -> Value:
    return b.op("compare", index, splat(b, number, index.type), name="inside", direction=direction)


def _with_copies(c: OpContext, x: Value, t: ScatterHalo, axes: Axes) -> Value:
    """The box with the tensor's first element at each position before it, and the last at each position behind it."""
    b, n = c.builder, c.op.operands[0].shape[t.operand.dim]
    index = _positions(b, x, t.operand, axes)
    for edge, direction in ((0, "LT"), (n - 1, "GT")):
        outside = _compare(b, index, edge, direction)
        copy = _element(c, x, t, axes, edge)
        x = b.op("select", outside, copy, x, name=x.name)
    return x


def _element(c: OpContext, x: Value, t: ScatterHalo, axes: Axes, index: int) -> Value:
    """One element of the dim, broadcast over the box; an arbitrary one if the box does not contain it."""
    b, dim, box = c.builder, t.operand.dim, t.operand.box
    at = written(b, position(b, axes) * -box.step + (index - box.start))
    return _spread(b, take_shard(b, x, dim, at, 1), dim, x.shape)


def _spread(b: RegionBuilder, one: Value, dim: int, shape: tuple[int, ...]) -> Value:
    """A tensor of size 1 in `dim`, repeated along it."""
    kept = tuple(d for d in range(len(shape)) if d != dim)
    flat = b.op("reshape", one, name=one.name, shape=tuple(shape[d] for d in kept))
    return b.op("broadcast_in_dim", flat, name=one.name, shape=shape, dims=kept)


def _of_real_windows(c: OpContext, x: Value, t: ScatterHalo, axes: Axes) -> Value:
    """The source with zeros for windows that contain nothing but padding."""
    b, dim = c.builder, t.source.dim
    n, window = c.op.operands[0].shape[dim], window_of(c.op)[dim]
    last = window.stride * (c.op.operands[1].shape[dim] - 1) - window.low
    if window.low < window.size and last < n:
        return x
    index = _positions(b, x, t.source, axes)
    begin = b.op("multiply", index, splat(b, t.stride, index.type), name="position")
    after = _compare(b, begin, window.low - window.size, "GT")
    before = _compare(b, begin, window.low + n, "LT")
    real = b.op("and", after, before, name="inside")
    return b.op("select", real, x, splat(b, identity_of("sum", x.dtype), x.type), name=x.name)


def _folded(c: OpContext, x: Value, t: ScatterHalo, axes: Axes) -> Value:
    """What the copies of an edge received, added to the edge."""
    b, dim = c.builder, t.operand.dim
    n = c.op.operands[0].shape[dim]
    index = _positions(b, x, t.operand, axes)
    nothing = splat(b, identity_of("sum", x.dtype), x.type)
    for edge, direction in ((0, "LT"), (n - 1, "GT")):
        outside = b.op("select", _compare(b, index, edge, direction), x, nothing, name=x.name)
        total = b.op("reduce", outside, name=x.name, dims=(dim,), kind="sum")
        kept = tuple(d for d in range(x.type.rank) if d != dim)
        total = b.op("broadcast_in_dim", total, name=x.name, shape=x.shape, dims=kept)
        here = b.op("select", _compare(b, index, edge, "EQ"), total, nothing, name=x.name)
        x = b.op("add", x, here, name=x.name)
    return x


def _cut(c: OpContext, x: Value, found: dict[int, ScatterHalo]) -> Value:
    """The device's shard."""
    local = c.local_type().shape
    start = tuple(found[d].shard if d in found else 0 for d in range(len(local)))
    if x.shape == local:
        return x
    limit = tuple(s + n for s, n in zip(start, local, strict=True))
    return c.builder.op("slice", x, name=x.name, start=start, limit=limit)
