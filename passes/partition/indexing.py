"""Ops at computed indices, on shards."""

from __future__ import annotations

from collections.abc import Sequence

from ir.program import Value
from passes.partition.partitioner import OpContext


def dynamic_slice(c: OpContext) -> Sequence[Value]:
    """A dim that is split is taken whole."""
    return c.emit(*c.operands, sizes=c.local_type().shape)
