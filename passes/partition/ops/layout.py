"""Layout ops on shards: the attributes that state a shape state the shard's."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ir.ops import FactorKind
from ir.ops.reshape_blocks import blocks_of, leading
from ir.ops.rule_helpers import int_attr, ints_attr
from ir.program import Value
from passes.partition.context import OpContext
from passes.partition.exchange.box_exchange import exchange
from passes.partition.exchange.halo import (
    concatenate_needs,
    pad_needs,
    reshape_needs,
    reverse_needs,
    run_length,
    slice_needs,
)
from passes.partition.shards import positions, shard_start, splat


def broadcast_in_dim(c: OpContext) -> Sequence[Value]:
    """Dims that are split were made by the broadcast, or are split alike in the operand."""
    return c.emit(*c.operands, shape=c.local_type().shape, dims=c.op.attrs["dims"])


def reshape(c: OpContext) -> Sequence[Value]:
    """Factors shrink alike on both sides; where the block rule was chosen, the runs of its blocks are exchanged."""
    b, x = c.builder, c.operands[0]
    shape = list(x.shape)
    for block in blocks_of(c.op.operands[0].shape, c.op.result.shape):
        head = leading(c.op.result.shape, block.target)
        if head is None or not _is_window(c, head):
            continue
        axes = c.assignment.results[0].axes[head]
        (need,) = reshape_needs(c.op, head, axes)
        at = block.source.start
        run = math.prod(shape[d] for d in block.source)
        outer, inner = math.prod(shape[:at]), math.prod(shape[block.source.stop :])
        x = b.op("reshape", x, name=x.name, shape=(outer, run, inner))
        whole = run_length(c.op, c.op.operands[0].shape, need.dim)
        x = exchange(b, x, 1, whole, axes, need.box)
        shape[at : block.source.stop] = [need.box.size, *(1 for _ in block.source[1:])]
    return c.emit(x, shape=c.local_type().shape)


def _is_window(c: OpContext, dim: int) -> bool:
    """Whether a dim of the result is split by a factor whose shards have other boundaries in the operand."""
    factors = c.rule.results[0][dim]
    split = dict(c.assignment.factors)
    return len(factors) == 1 and c.rule.factors[factors[0]].kind is FactorKind.WINDOW and bool(split.get(factors[0]))


def slice_(c: OpContext) -> Sequence[Value]:
    """Of dims that are not split, what the device holds is cut first; of those that are, boxes are exchanged."""
    attrs = c.op.attrs
    start, limit = list(ints_attr(attrs, "start")), list(ints_attr(attrs, "limit"))
    stride = list(ints_attr(attrs, "stride") or (1,) * len(start))
    exchanged = [
        dim
        for dim, axes in enumerate(c.assignment.results[0].axes)
        if axes and c.op.operands[0].shape[dim] != c.op.result.shape[dim]
    ]
    x = c.operands[0]
    for dim, axes in enumerate(c.assignment.results[0].axes):
        if axes:
            start[dim], limit[dim], stride[dim] = 0, x.shape[dim], 1
    if (start, limit, stride) != ([0] * x.type.rank, list(x.shape), [1] * x.type.rank):
        (x,) = c.emit(x, start=tuple(start), limit=tuple(limit), stride=tuple(stride))
    for dim in exchanged:
        (need,) = slice_needs(c.op, dim, c.assignment.results[0].axes[dim])
        x = c.exchanged(need, of=x)
    return (x,)


def pad(c: OpContext) -> Sequence[Value]:
    """A dim that is split is not padded, or its box is exchanged, filled with the padding value."""
    attrs = c.op.attrs
    x, value = c.operands
    low, high = list(ints_attr(attrs, "low")), list(ints_attr(attrs, "high"))
    interior = list(ints_attr(attrs, "interior") or (0,) * x.type.rank)
    for dim, axes in enumerate(c.assignment.results[0].axes):
        if not axes or not (low[dim] or high[dim] or interior[dim]):
            continue
        (need,) = pad_needs(c.op, dim, axes)
        x = c.exchanged(need, of=x, fill=value)
        low[dim] = high[dim] = interior[dim] = 0
    return c.emit(x, value, low=tuple(low), high=tuple(high), interior=tuple(interior))


def reverse(c: OpContext) -> Sequence[Value]:
    """The box from the other end, reversed."""
    x = c.operands[0]
    for dim in ints_attr(c.op.attrs, "dims"):
        axes = c.assignment.results[0].axes[dim]
        if axes:
            (need,) = reverse_needs(c.op, dim, axes)
            x = c.exchanged(need, of=x)
    return c.emit(x, dims=c.op.attrs["dims"])


def concatenate(c: OpContext) -> Sequence[Value]:
    """Along a split dim, each operand's part of the device's box, one selected over the other by position."""
    dim = int_attr(c.op.attrs, "dim")
    axes = c.assignment.results[0].axes[dim]
    if not axes:
        return c.emit(*c.operands, dim=dim)
    b, local = c.builder, c.local_type()
    needs = concatenate_needs(c.op, dim, axes)
    boxes = c.all_exchanged(needs, of=c.operands, fills=[None] * len(needs))
    position = positions(b, local.shape, dim, shard_start(b, c.op.result.shape[dim], axes))
    result = boxes[-1]
    for box, need in zip(reversed(boxes[:-1]), reversed(needs[1:]), strict=True):
        before = b.op("compare", position, splat(b, -need.box.start, position.type), name="before", direction="LT")
        result = b.op("select", before, box, result, name=c.op.result.name)
    return (result,)
