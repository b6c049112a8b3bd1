"""top_k, and sorts of which only the first elements are used, over a split dim: each device finds candidates, which are
exchanged and sorted, those of a few devices at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ir.mesh import Axes
from ir.ops.rule_helpers import int_attr
from ir.program import Attr, Value
from ir.types import DType
from passes.partition.context import OpContext
from passes.partition.exchange.candidates import exchanged_candidates, groups_of_candidates
from passes.partition.registry import partitions
from passes.partition.shards import mask, shard_start, uneven_dims


@partitions("sort")
def sort(c: OpContext) -> Sequence[Value]:
    """Sorts a split dim of which only the first elements are wanted. Padding is set to the last element of the order,
    and comes after equal elements."""
    dim, first = int_attr(c.op.attrs, "dim"), c.op.attrs["first"]
    sharding, keys = c.strategy.operands[0], int_attr(c.op.attrs, "num_keys")
    if not isinstance(first, int) or not sharding.axes[dim]:
        return c.emit(*c.operands, **c.op.attrs)
    descending, operands = bool(c.op.attrs["descending"]), list(c.operands)
    padded = [d for d in uneven_dims(c.op.operands[0].shape, sharding) if d == dim]
    for i, operand in enumerate(c.op.operands[:keys]):
        last = operand.dtype.lowest if descending else _last(operand.dtype)
        operands[i] = mask(c.builder, operands[i], c.op, i, sharding, padded, last)
    order: dict[str, Attr] = {"dim": dim, "descending": descending, "num_keys": keys}
    found = c.emit(*operands, **order, first=min(first, operands[0].shape[dim]))
    return _first_of_all(c, found, sharding.axes[dim], order, first)


def _last(dtype: DType) -> float | int | bool:
    """The number that comes last in ascending order."""
    return math.nan if dtype.is_float and dtype.format.has_nan else dtype.highest


def _first_of_all(
    c: OpContext, found: Sequence[Value], axes: Axes, order: Mapping[str, Attr], first: int
) -> Sequence[Value]:
    """The first elements of all devices' candidates, which are in the order of their shards: a stable sort lets the
    earlier one win a tie."""
    b, dim, names = c.builder, int_attr(order, "dim"), [v.name for v in c.op.results]
    for group in groups_of_candidates(c.strategy, axes):
        with c.because("candidates", group, *c.op.operands):
            candidates = exchanged_candidates(c.builder, c.rule, c.strategy, found, group, dim)
            kept = {**order, "first": min(first, candidates[0].shape[dim])}
            found = b.append("sort", candidates, kept, names=names)
    return found


@partitions("top_k")
def top_k(c: OpContext) -> Sequence[Value]:
    """Along a split last dim each device finds its k largest elements; padding is set to the smallest."""
    sharding, operand, k = c.strategy.operands[0], c.op.operands[0], int_attr(c.op.attrs, "k")
    (x,) = c.operands
    dim = x.type.rank - 1
    axes = sharding.axes[dim]
    if not axes:
        return c.emit(x, k=k)
    padded = [d for d in uneven_dims(operand.shape, sharding) if d == dim]
    x = mask(c.builder, x, c.op, 0, sharding, padded, operand.dtype.lowest)
    values, indices = c.emit(x, k=min(k, x.shape[dim]))
    b = c.builder
    start = shard_start(b, operand.shape[dim], axes)
    start = b.op("broadcast_in_dim", start, name="start", shape=indices.shape, dims=())
    found = (values, b.op("add", indices, start, name=indices.name))
    return _first_of_all(c, found, axes, {"dim": dim, "descending": True, "num_keys": 1}, k)
