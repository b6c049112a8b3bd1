"""opaque on shards: the call itself, for results of a shard's types."""

from __future__ import annotations

from collections.abc import Sequence

from ir.ops.opaque import aliases_attr
from ir.program import Value
from passes.partition.context import OpContext
from passes.partition.registry import partitions


@partitions("opaque")
def opaque(c: OpContext) -> Sequence[Value]:
    """The factor rule splits only what the call may be split over. Memory is shared where operand and result still have
    the same type."""
    types = tuple(c.local_type(i) for i in range(len(c.op.results) - bool(c.op.attrs["effect"])))
    kept = tuple(pair for pair in aliases_attr(c.op.attrs).items() if c.operands[pair[0]].type == types[pair[1]])
    return c.emit(*c.operands, **{**c.op.attrs, "types": types, "rule": "", "aliases": kept})
