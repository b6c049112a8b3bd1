"""Pads that also cut: along dims that devices have whole, they cut before they pad along split ones, so that what is
cut off is not sent.

A pad with negative edges is what a slice and a pad behind it are simplified to, and the gradient of a concatenation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ir.builder import RegionBuilder
from ir.ops.rule_helpers import ints_attr
from ir.program import Op
from passes.partition.registry import Surroundings, rewrites


@rewrites("pad")
def cut_before_padding(op: Op, at: Surroundings) -> Sequence[Op]:
    """A slice and a pad; the op itself if it cuts along no dim that is whole, or changes no split one."""
    x, fill = op.operands
    low, high = (list(ints_attr(op.attrs, name)) for name in ("low", "high"))
    interior = ints_attr(op.attrs, "interior") or (0,) * x.type.rank
    is_split = [any(axes) for axes in zip(at.wanted(x).axes, at.wanted(op.result).axes, strict=True)]
    moves = any(split and (low[d] or high[d] or interior[d]) for d, split in enumerate(is_split))
    dims = [d for d, split in enumerate(is_split) if not split and not interior[d] and min(low[d], high[d]) < 0]
    if not moves or not dims:
        return (op,)
    start, limit = [0] * x.type.rank, list(x.shape)
    for d in dims:
        start[d], limit[d] = min(x.shape[d], max(0, -low[d])), max(0, x.shape[d] + min(0, high[d]))
        if start[d] >= limit[d]:
            return (op,)
        low[d], high[d] = max(0, low[d]), max(0, high[d])
    b = RegionBuilder(span=op.span, cause=op.cause)
    cut = b.op("slice", x, name=x.name, sharding=x.sharding, start=tuple(start), limit=tuple(limit))
    padded = replace(op, operands=(cut, fill), attrs={**op.attrs, "low": tuple(low), "high": tuple(high)})
    return (*b.ops, padded)
