"""convolution on shards: a device has its part of the groups, and of spatial dims the box that its windows see, or that
its part of the kernel sees (GShard, section A.4)."""

from __future__ import annotations

from collections.abc import Sequence

from ir.ops.convolution import GROUP_FACTOR, ConvolutionDims, convolution_windows, group_counts
from ir.program import Attr, Value
from ir.sharding import shard_size
from passes.partition.along import Cover, kernel_cover, window_cover
from passes.partition.padding import mask, uneven_dims
from passes.partition.partitioner import OpContext
from passes.partition.window import empty_result, local_settings, zero

_NAMES = {"base_dilation": "lhs_dilation", "window_dilation": "rhs_dilation"}


def convolution(c: OpContext) -> Sequence[Value]:
    """Where the groups are split, there are fewer of them; along spatial dims boxes of lhs are exchanged."""
    if 0 in c.local_type().shape:
        return (empty_result(c),)
    dims = ConvolutionDims.of(c.op.attrs)
    windows = list(convolution_windows(c.op.attrs, c.op.operands[1].shape))
    lhs = c.operands[0]
    for spatial, window in enumerate(windows):
        cover = _cover(c, dims, spatial)
        if cover is None or window.is_pointwise:
            continue
        lhs = c.exchanged(cover.need, of=lhs, fill=zero(c.builder, lhs.dtype))
        windows[spatial] = cover.local(window)
    settings = local_settings(windows, _NAMES)
    return c.emit(lhs, _kernel(c, dims), **{**c.op.attrs, **settings, **_groups(c)})


def _groups(c: OpContext) -> dict[str, Attr]:
    features, batches = group_counts(c.op.attrs)
    if features * batches == 1:
        return {}
    axes = dict(c.assignment.factors).get(GROUP_FACTOR, ())
    return {
        "feature_group_count": shard_size(features, axes) if features > 1 else 1,
        "batch_group_count": shard_size(batches, axes) if batches > 1 else 1,
    }


def _cover(c: OpContext, dims: ConvolutionDims, spatial: int) -> Cover | None:
    """What the device needs of a spatial dim of lhs, if it is split."""
    axes = c.assignment.operands[1].axes[dims.rhs_spatial[spatial]]
    if axes:
        return kernel_cover(c.op, spatial, axes)
    dim = dims.out_spatial[spatial]
    axes = c.assignment.results[0].axes[dim]
    if not axes:
        return None
    window = convolution_windows(c.op.attrs, c.op.operands[1].shape)[spatial]
    return window_cover(0, dims.lhs_spatial[spatial], window, c.op.result.shape[dim], axes)


def _kernel(c: OpContext, dims: ConvolutionDims) -> Value:
    """The device's part of the kernel, with zeros for what lies beyond its last elements."""
    shape, layout = c.op.operands[1].shape, c.assignment.operands[1]
    padded = [d for d in uneven_dims(shape, layout) if d in dims.rhs_spatial]
    return mask(c.builder, c.operands[1], shape, layout, padded, 0)
