"""Layout ops on shards: the attributes that state a shape state the shard's."""

from __future__ import annotations

from collections.abc import Sequence

from ir.ops.rules import ints_attr
from ir.program import Value
from passes.partition.partitioner import OpContext


def broadcast_in_dim(c: OpContext) -> Sequence[Value]:
    """Dims that are split were made by the broadcast, or are split alike in the operand."""
    return c.emit(*c.operands, shape=c.local_type().shape, dims=c.op.attrs["dims"])


def reshape(c: OpContext) -> Sequence[Value]:
    """Factors of which each side's dims consist shrink alike."""
    return c.emit(*c.operands, shape=c.local_type().shape)


def slice_(c: OpContext) -> Sequence[Value]:
    """A dim that is split is taken whole."""
    limit = ints_attr(c.op.attrs, "limit")
    local = tuple(
        have if axes else stop
        for stop, have, axes in zip(limit, c.operands[0].shape, c.assignment.operands[0].axes, strict=True)
    )
    return c.emit(*c.operands, start=c.op.attrs["start"], limit=local, stride=c.op.attrs.get("stride", ()))
