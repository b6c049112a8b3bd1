"""Shortens sorts of which only the first elements are used.

So `jnp.argsort(x)[:k]` over a split dim is partitioned like top_k: each device finds candidates in its shard.
"""

from __future__ import annotations

from dataclasses import replace

from ir.dataflow import Uses, uses_within
from ir.ops.rule_helpers import int_attr, ints_attr
from ir.program import Function, Op, Region, Value, walk


def keep_firsts(function: Function) -> Function:
    """The function with each sort shortened to the elements that slices take of it."""
    if not any(_may_keep_fewer(op) for op in walk(function.body)):
        return function
    return replace(function, body=_region(function.body, uses_within(function.body), {}))


def _may_keep_fewer(op: Op) -> bool:
    return op.name == "sort" and op.attrs["first"] is None and all(v.sharding is None for v in op.results)


def _region(region: Region, uses: Uses, kept: dict[Value, Value]) -> Region:
    """The rewritten region. `kept` has the replacements of a sort's results, and of slices that take all that it
    keeps."""
    ops: list[Op] = []
    for op in region.ops:
        operands = tuple([kept.get(v, v) for v in op.operands])
        takes_all = op.name == "slice" and op.operands[0] in kept and op.result.type == operands[0].type
        if takes_all and op.result.sharding is None:
            kept[op.result] = operands[0]
            continue
        op = replace(op, operands=operands, regions=tuple([_region(r, uses, kept) for r in op.regions]))
        first = _first(op, uses)
        if first is not None:
            results = tuple([replace(v, type=v.type.with_shape(_cut(op, v.shape, first))) for v in op.results])
            kept.update(zip(op.results, results, strict=True))
            op = replace(op, results=results, attrs={**op.attrs, "first": first})
        ops.append(op)
    return Region(region.params, tuple(ops), tuple([kept.get(v, v) for v in region.results]))


def _cut(op: Op, shape: tuple[int, ...], first: int) -> tuple[int, ...]:
    return tuple(first if d == op.attrs["dim"] else n for d, n in enumerate(shape))


def _first(op: Op, uses: Uses) -> int | None:
    """How many elements of a sort are used, if all of its results are only sliced to their first elements."""
    if not _may_keep_fewer(op) or any(v in uses.given for v in op.results):
        return None
    dim, used = int_attr(op.attrs, "dim"), [use for v in op.results for use in uses.users.get(v, ())]
    limits = [ints_attr(use.attrs, "limit")[dim] for use in used if use.name == "slice"]
    if not limits or len(limits) < len(used) or max(limits) == op.results[0].shape[dim]:
        return None
    return max(limits)
