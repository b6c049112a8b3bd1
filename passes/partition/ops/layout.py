"""Layout ops on shards: attributes that specify a shape specify the shard's."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ir.mesh import Axes
from ir.ops import FactorKind
from ir.ops.reshape_blocks import blocks_of, leading
from ir.ops.rule_helpers import int_attr, ints_attr
from ir.program import Op, Value
from ir.sharding import shard_size
from passes.partition.context import OpContext
from passes.partition.exchange.box_exchange import Box, exchange
from passes.partition.exchange.halo import Halo, ends, receivers_of, whole_or_spread
from passes.partition.registry import partitions
from passes.partition.shards import positions, shard_start, splat


def slice_halo(op: Op, dim: int, axes: Axes) -> Sequence[Halo]:
    """A shard of the result is every stride-th element of a box."""
    n = op.result.shape[dim]
    size = shard_size(n, axes)
    stride = (ints_attr(op.attrs, "stride") or (1,) * (dim + 1))[dim]
    start = ints_attr(op.attrs, "start")[dim]
    length = max(0, stride * (size - 1) + 1)
    end = start + stride * (n - 1) + 1
    return (Halo(0, dim, Box(start, stride * size, length, stride, start % stride, end, receivers_of(n, axes))),)


def pad_halo(op: Op, dim: int, axes: Axes) -> Sequence[Halo]:
    """A shard of the result is a box of the operand, shifted by the padding before it."""
    n = op.result.shape[dim]
    size = shard_size(n, axes)
    gap = (ints_attr(op.attrs, "interior") or (0,) * (dim + 1))[dim]
    low = ints_attr(op.attrs, "low")[dim]
    box = Box(-low, size, size, end=n - low, receivers=receivers_of(n, axes))
    return (whole_or_spread(0, dim, box, (Box(*ends(box), gap + 1, 0, box.end, box.receivers),), gap + 1),)


def reverse_halo(op: Op, dim: int, axes: Axes) -> Sequence[Halo]:
    """Boxes come from the other end of the dim, and the padding moves back behind the last element."""
    n = op.result.shape[dim]
    size = shard_size(n, axes)
    return (Halo(0, dim, Box(n - size, -size, size)),)


def concatenate_halo(op: Op, dim: int, axes: Axes) -> Sequence[Halo]:
    """A shard of the result may have a part of every operand."""
    size = shard_size(op.result.shape[dim], axes)
    needs: list[Halo] = []
    offset = 0
    for position, value in enumerate(op.operands):
        needs.append(Halo(position, dim, Box(-offset, size, size)))
        offset += value.shape[dim]
    return needs


def reshape_halo(op: Op, dim: int, axes: Axes) -> Sequence[Halo]:
    """The run of a block, in row-major order, that is the result's shard. The dim is the first split one of the
    block."""
    source, target = op.operands[0].shape, op.result.shape
    block = next(b for b in blocks_of(source, target) if dim in b.target)
    head = leading(source, block.source)
    assert head is not None
    size = shard_size(target[dim], axes) * math.prod(target[dim + 1 : block.target.stop])
    return (Halo(0, head, Box(0, size, size), dims=block.source),)


@partitions("broadcast_in_dim")
def broadcast_in_dim(c: OpContext) -> Sequence[Value]:
    """Split dims are either new in the broadcast, or split in the same way in the operand."""
    return c.emit(*c.operands, shape=c.local_type().shape, dims=c.op.attrs["dims"])


@partitions("reshape", halo=reshape_halo)
def reshape(c: OpContext) -> Sequence[Value]:
    """Factors shrink by the same ratio on both sides. If the block rule was chosen, the runs of its blocks are
    exchanged."""
    b, x = c.builder, c.operands[0]
    shape = list(x.shape)
    for block in blocks_of(c.op.operands[0].shape, c.op.result.shape):
        head = leading(c.op.result.shape, block.target)
        if head is None or not _is_window(c, head):
            continue
        axes = c.strategy.results[0].axes[head]
        (need,) = reshape_halo(c.op, head, axes)
        at = block.source.start
        run = math.prod(shape[d] for d in block.source)
        outer, inner = math.prod(shape[:at]), math.prod(shape[block.source.stop :])
        x = b.op("reshape", x, name=x.name, shape=(outer, run, inner))
        whole = math.prod(c.op.operands[0].shape[d] for d in block.source)
        with c.because("halo", axes, c.op.operands[0]):
            x = exchange(b, x, 1, whole, axes, need.box)
        shape[at : block.source.stop] = [need.box.size, *(1 for _ in block.source[1:])]
    return c.emit(x, shape=c.local_type().shape)


def _is_window(c: OpContext, dim: int) -> bool:
    """Whether a dim of the result is split by a factor whose shards have other boundaries in the operand."""
    factors = c.rule.results[0][dim]
    split = dict(c.strategy.factors)
    return len(factors) == 1 and c.rule.factors[factors[0]].kind is FactorKind.WINDOW and bool(split.get(factors[0]))


@partitions("slice", halo=slice_halo)
def slice_(c: OpContext) -> Sequence[Value]:
    """Dims that are not split are sliced first; along the split ones boxes are exchanged."""
    attrs = c.op.attrs
    start, limit = list(ints_attr(attrs, "start")), list(ints_attr(attrs, "limit"))
    stride = list(ints_attr(attrs, "stride") or (1,) * len(start))
    exchanged = [
        dim
        for dim, axes in enumerate(c.strategy.results[0].axes)
        if axes and c.op.operands[0].shape[dim] != c.op.result.shape[dim]
    ]
    x = c.operands[0]
    for dim, axes in enumerate(c.strategy.results[0].axes):
        if axes:
            start[dim], limit[dim], stride[dim] = 0, x.shape[dim], 1
    if (start, limit, stride) != ([0] * x.type.rank, list(x.shape), [1] * x.type.rank):
        (x,) = c.emit(x, start=tuple(start), limit=tuple(limit), stride=tuple(stride))
    for dim in exchanged:
        (need,) = slice_halo(c.op, dim, c.strategy.results[0].axes[dim])
        x = c.exchanged(need, of=x)
    return (x,)


@partitions("pad", halo=pad_halo)
def pad(c: OpContext) -> Sequence[Value]:
    """A split dim either has no padding, or its box is exchanged and filled with the padding value, unless any will
    do."""
    attrs = c.op.attrs
    x, value = c.operands
    fill = None if value in c.builder.undefined else value
    low, high = list(ints_attr(attrs, "low")), list(ints_attr(attrs, "high"))
    interior = list(ints_attr(attrs, "interior") or (0,) * x.type.rank)
    for dim, axes in enumerate(c.strategy.results[0].axes):
        if not axes or not (low[dim] or high[dim] or interior[dim]):
            continue
        (need,) = pad_halo(c.op, dim, axes)
        x = c.exchanged(need, of=x, fill=fill)
        low[dim] = high[dim] = interior[dim] = 0
    if not any((*low, *high, *interior)):
        return (x,)
    return c.emit(x, value, low=tuple(low), high=tuple(high), interior=tuple(interior))


@partitions("reverse", halo=reverse_halo)
def reverse(c: OpContext) -> Sequence[Value]:
    """The box from the other end of the dim, reversed."""
    x = c.operands[0]
    for dim in ints_attr(c.op.attrs, "dims"):
        axes = c.strategy.results[0].axes[dim]
        if axes:
            (need,) = reverse_halo(c.op, dim, axes)
            x = c.exchanged(need, of=x)
    return c.emit(x, dims=c.op.attrs["dims"])


@partitions("concatenate", halo=concatenate_halo)
def concatenate(c: OpContext) -> Sequence[Value]:
    """Along a split dim, each operand's part of the device's box, selected by position."""
    dim = int_attr(c.op.attrs, "dim")
    axes = c.strategy.results[0].axes[dim]
    if not axes:
        return c.emit(*c.operands, dim=dim)
    b, local = c.builder, c.local_type()
    needs = concatenate_halo(c.op, dim, axes)
    boxes = c.all_exchanged(needs, of=c.operands, fills=[None] * len(needs))
    position = positions(b, local.shape, dim, shard_start(b, c.op.result.shape[dim], axes))
    result = boxes[-1]
    for box, need in zip(reversed(boxes[:-1]), reversed(needs[1:]), strict=True):
        before = b.op("compare", position, splat(b, -need.box.start, position.type), name="before", direction="LT")
        result = b.op("select", before, box, result, name=c.op.result.name)
    return (result,)
