"""map on shards."""

from __future__ import annotations

from collections.abc import Sequence

from ir.program import Value
from passes.partition.context import OpContext
from passes.partition.registry import partitions


@partitions("map")
def map_(c: OpContext) -> Sequence[Value]:
    """Applies a function of scalars to the shards as to the tensors."""
    op = c.op
    types = [c.local_type(i) for i in range(len(op.results))]
    names = [v.name for v in op.results]
    return c.builder.append("map", c.operands, dict(op.attrs), names=names, span=op.span, cause=op.cause, types=types)
