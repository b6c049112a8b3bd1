"""top_k over a split dim: each device finds candidates, and only these are exchanged and sorted, those of a few devices
at a time."""

from __future__ import annotations

from collections.abc import Sequence

from ir.mesh import axes_in_groups
from ir.ops.rules import int_attr
from ir.program import Value
from passes.partition.along import FEW
from passes.partition.padding import mask, resize, shard_start, uneven_dims
from passes.partition.partitioner import OpContext


def top_k(c: OpContext) -> Sequence[Value]:
    """The candidates stand in the order of their shards: a stable sort lets the first win a tie."""
    layout, operand, k = c.assignment.operands[0], c.op.operands[0], int_attr(c.op.attrs, "k")
    (x,) = c.operands
    dim = x.type.rank - 1
    axes = layout.axes[dim]
    if not axes:
        return c.emit(x, k=k)
    padded = [d for d in uneven_dims(operand.shape, layout) if d == dim]
    x = mask(c.builder, x, operand.shape, layout, padded, operand.dtype.lowest)
    values, indices = c.emit(x, k=min(k, x.shape[dim]))
    b = c.builder
    start = shard_start(b, operand.shape[dim], axes)
    start = b.op("broadcast_in_dim", start, name="start", shape=indices.shape, dims=())
    found = [values, b.op("add", indices, start, name=indices.name)]
    names = [v.name for v in c.op.results]
    for group in axes_in_groups(axes, FEW):
        b.note = f"candidates of top_k over {', '.join(map(c.mesh.spell, group))}"
        candidates = [b.op("all_gather", v, name=v.name, axes=group, dim=dim) for v in found]
        ranked = b.multi("sort", *candidates, names=names, dim=dim, descending=True, num_keys=1, stable=True)
        found = [resize(b, v, dim, min(k, v.shape[dim])) for v in ranked]
    return found
