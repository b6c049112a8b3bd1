"""argmax and argmin over split dims: each device finds its own extreme, and the few candidates are compared."""

from __future__ import annotations

from collections.abc import Sequence

from ir.mesh import merge_axes
from ir.ops.reduction import reduction_kind
from ir.program import Value
from passes.partition.padding import mask, uneven_dims
from passes.partition.partitioner import OpContext


def reduce(c: OpContext) -> Sequence[Value]:
    """Sums and the like stay partial; for argmax and argmin the candidates are gathered and reduced again."""
    if reduction_kind(c.op.attrs) is not None:
        return c.emit(*c.operands, **c.op.attrs)
    kept = {f for tensor in c.rule.results for dim in tensor for f in dim}
    axes = tuple(a for f, split in c.assignment.factors if f not in kept for a in split)
    results = c.emit(*_without_padding(c), **c.op.attrs)
    if not axes:
        return results
    b = c.builder
    b.note = f"candidates of {c.op.attrs['kind']} over {', '.join(a.name for a in merge_axes(axes))}"
    candidates: list[Value] = []
    for local in results:
        row = b.op("reshape", local, name=local.name, shape=(1, *local.shape))
        candidates.append(b.op("all_gather", row, name=local.name, axes=merge_axes(axes), dim=0))
    return c.emit(*candidates, dims=(0,), kind=c.op.attrs["kind"])


def _without_padding(c: OpContext) -> list[Value]:
    """Values that lose every comparison, and indices that lose every tie, in the padding of reduced dims."""
    kept = {f for tensor in c.rule.results for dim in tensor for f in dim}
    largest = c.op.attrs["kind"] == "argmax"
    masked: list[Value] = []
    for i, (value, layout, local) in enumerate(zip(c.op.operands, c.assignment.operands, c.operands, strict=True)):
        dims = [d for d in uneven_dims(value.shape, layout) if c.rule.operands[i][d][0] not in kept]
        worst = value.dtype.lowest if largest and i == 0 else value.dtype.highest
        masked.append(mask(c.builder, local, value.shape, layout, dims, worst))
    return masked
