"""convolution on shards: a device has its share of the groups, and of spatial dims the box that its windows, or its
part of the kernel, read (GShard, section A.4)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ir.mesh import Axes, axes_size
from ir.ops.convolution import GROUP_FACTOR, ConvolutionDims, convolution_windows, group_counts
from ir.ops.rule_helpers import ints_attr
from ir.ops.window import Window
from ir.program import Attr, Op, Value
from ir.sharding import shard_size
from ir.types import f32
from passes.partition.context import OpContext
from passes.partition.exchange.halo import Halo, HaloWindow, WindowReads, halo_of_reads, receivers_of, window_halo
from passes.partition.ops.window import empty_result, local_settings, zero
from passes.partition.registry import partitions
from passes.partition.shards import integer, shard_index, splat

_NAMES = {"base_dilation": "lhs_dilation", "window_dilation": "rhs_dilation"}


def convolution_halo(op: Op, dim: int, axes: Axes) -> Sequence[Halo]:
    """A shard of the result has as many windows as elements; the kernel is whole."""
    dims = ConvolutionDims.of(op.attrs)
    spatial = dims.out_spatial.index(dim)
    window = convolution_windows(op.attrs, op.operands[1].shape)[spatial]
    return (window_halo(dims.lhs_spatial[spatial], window, op.result.shape[dim], axes).need,)


def kernel_window(op: Op, spatial: int, axes: Axes) -> HaloWindow:
    """The elements of lhs that a part of the kernel reads in all windows of a spatial dim."""
    dims = ConvolutionDims.of(op.attrs)
    window = convolution_windows(op.attrs, op.operands[1].shape)[spatial]
    size, count = shard_size(window.size, axes), op.result.shape[dims.out_spatial[spatial]]
    start, step = -window.low, size * window.dilation
    if any(ints_attr(op.attrs, "window_reversal")[spatial : spatial + 1]):
        start, step = start + (window.size - size) * window.dilation, -step
    seen = WindowReads(start, step, window.dilation, size, window.stride, count)
    end = window.stride * (count - 1) - window.low + window.extent
    return halo_of_reads(dims.lhs_spatial[spatial], seen, window.base_dilation, end, receivers_of(window.size, axes))


def kernel_halo(op: Op, dim: int, axes: Axes) -> Sequence[Halo]:
    """The elements of lhs that a part of the kernel along its dim `dim` reads."""
    return (kernel_window(op, ConvolutionDims.of(op.attrs).rhs_spatial.index(dim), axes).need,)


@partitions("convolution", halo=convolution_halo, kernel_halo=kernel_halo)
def convolution(c: OpContext) -> Sequence[Value]:
    """Writes the convolution. If the groups are split, a device has fewer of them; along spatial dims boxes of lhs are
    exchanged."""
    if 0 in c.local_type().shape:
        return (empty_result(c),)
    dims = ConvolutionDims.of(c.op.attrs)
    windows = list(convolution_windows(c.op.attrs, c.op.operands[1].shape))
    lhs = c.operands[0]
    for spatial, window in enumerate(windows):
        halo_window = _cover(c, dims, spatial)
        if halo_window is None or window.is_pointwise:
            continue
        lhs = c.exchanged(halo_window.need, of=lhs, fill=zero(c.builder, lhs.dtype))
        windows[spatial] = halo_window.local(window)
    return (_summed(c, lhs, windows),)


def _groups(c: OpContext) -> dict[str, Attr]:
    features, batches = group_counts(c.op.attrs)
    if features * batches == 1:
        return {}
    axes = dict(c.strategy.factors).get(GROUP_FACTOR, ())
    return {
        "feature_group_count": shard_size(features, axes) if features > 1 else 1,
        "batch_group_count": shard_size(batches, axes) if batches > 1 else 1,
    }


def _cover(c: OpContext, dims: ConvolutionDims, spatial: int) -> HaloWindow | None:
    """The elements of a spatial dim of lhs that the device needs, if the dim is split."""
    axes = c.strategy.operands[1].axes[dims.rhs_spatial[spatial]]
    if axes:
        return kernel_window(c.op, spatial, axes)
    dim = dims.out_spatial[spatial]
    axes = c.strategy.results[0].axes[dim]
    if not axes:
        return None
    window = convolution_windows(c.op.attrs, c.op.operands[1].shape)[spatial]
    return window_halo(dims.lhs_spatial[spatial], window, c.op.result.shape[dim], axes)


# The kernel's last shard.


@dataclass(frozen=True, slots=True)
class _Part:
    """Elements [first, first + size) of the shards of a kernel's dim. The first `devices` devices along `axes` have all
    of them, and the others none."""

    first: int
    size: int
    devices: int
    axes: Axes


def _parts(n: int, axes: Axes) -> list[_Part]:
    """The parts of a kernel's dim of size n: what the last shard has too if it is not full, and what only full ones
    have."""
    chunk = shard_size(n, axes)
    full, rest = divmod(n, chunk)
    parts = (_Part(0, rest, full + 1, axes), _Part(rest, chunk - rest, full, axes))
    return [part for part in parts if part.size and part.devices]


def _summed(c: OpContext, lhs: Value, windows: Sequence[Window]) -> Value:
    """The contribution of the device's part of the kernel to each sum.

    A kernel shard that is not full is convolved without its padding, because that may read elements outside all
    windows: a product of zero and infinity must not be added to the sum.
    """
    b, name, dtype = c.builder, c.op.result.name, c.op.result.dtype
    dims, sharding = ConvolutionDims.of(c.op.attrs), c.strategy.operands[1]
    choices = [_parts(c.op.operands[1].shape[d], sharding.axes[d]) for d in dims.rhs_spatial]
    wide = dtype.is_float and dtype.nbytes < f32.nbytes and any(len(parts) > 1 for parts in choices)
    attrs = {**c.op.attrs, **_groups(c), **({"dtype": f32} if wide else {})}
    total: Value | None = None
    for parts in itertools.product(*choices):
        result = _product(c, lhs, windows, parts, attrs)
        total = result if total is None else b.op("add", total, result, name=name)
    assert total is not None
    return b.op("convert", total, name=name, dtype=dtype) if wide else total


def _product(
    c: OpContext, lhs: Value, windows: Sequence[Window], parts: Sequence[_Part], attrs: Mapping[str, Attr]
) -> Value:
    """The convolution with these parts of the kernel's spatial dims; zeros on devices that have none."""
    b, kernel, dims = c.builder, c.operands[1], ConvolutionDims.of(attrs)
    reversal = ints_attr(attrs, "window_reversal") or (0,) * len(windows)
    start, limit = [0] * kernel.type.rank, list(kernel.shape)
    fitted: list[Window] = []
    for d, window, part, backward in zip(dims.rhs_spatial, windows, parts, reversal, strict=True):
        start[d], limit[d] = part.first, part.first + part.size
        before, behind = part.first, kernel.shape[d] - part.first - part.size
        if backward:
            before, behind = behind, before
        low, high = window.low - before * window.dilation, window.high - behind * window.dilation
        fitted.append(replace(window, low=low, high=high))
    if (start, limit) != ([0] * kernel.type.rank, list(kernel.shape)):
        kernel = b.op("slice", kernel, name=kernel.name, start=tuple(start), limit=tuple(limit))
    (result,) = c.emit(lhs, kernel, **{**attrs, **local_settings(fitted, _NAMES)})
    for part in parts:
        if part.devices < axes_size(part.axes):
            count = integer(b, part.devices)
            has = b.op("compare", shard_index(b, part.axes), count, name="has", direction="LT")
            result = b.op("select", has, result, splat(b, 0, result.type), name=result.name)
    return result
