"""convolution on shards: a device has its part of the groups."""

from __future__ import annotations

from collections.abc import Sequence

from ir.ops.convolution import GROUP_FACTOR, group_counts
from ir.program import Value
from ir.sharding import shard_size
from passes.partition.partitioner import OpContext


def convolution(c: OpContext) -> Sequence[Value]:
    """Where the groups are split, there are fewer of them."""
    features, batches = group_counts(c.op.attrs)
    attrs = dict(c.op.attrs)
    if features * batches > 1:
        axes = dict(c.assignment.factors).get(GROUP_FACTOR, ())
        attrs["feature_group_count"] = shard_size(features, axes) if features > 1 else 1
        attrs["batch_group_count"] = shard_size(batches, axes) if batches > 1 else 1
    return c.emit(*c.operands, **attrs)
