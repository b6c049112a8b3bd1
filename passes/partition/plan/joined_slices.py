"""Concatenations of slices along a dim that is split: each element goes at once to the device that needs it.

Slices by themselves would first be brought to shards of their own, and from there to those of the result. A rotation by
one shard is a permute to the next device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ir.builder import RegionBuilder
from ir.dataflow import uses_of
from ir.ops.rule_helpers import int_attr
from ir.program import Op, Program, Value
from ir.types import TensorType, s32
from passes.joined_parts import Part, parts_of
from passes.partition.plan.static_starts import unseen
from passes.rewrite import map_ops


def join_what_is_cut(program: Program) -> Program:
    """The propagated program, in which what such slices are cut from is moved to its place in the result."""
    makers = uses_of(program).makers

    def each(op: Op) -> Iterable[Op]:
        parts = parts_of(op, makers.get)
        return _joined(op, parts) if _moves_shards(op, parts) else (op,)

    if not any(_moves_shards(op, parts_of(op, makers.get)) for op in makers.values()):
        return program
    functions = {name: replace(f, body=map_ops(f.body, each)) for name, f in program.functions.items()}
    return replace(program, functions=functions)


def _moves_shards(op: Op, parts: Sequence[Part]) -> bool:
    """Whether something split is cut to become a part of a dim that is split too."""
    if not parts or not _is_split(op.result, int_attr(op.attrs, "dim")):
        return False
    cut = (part.source for part, value in zip(parts, op.operands, strict=True) if part.source is not value)
    return any(_is_split(source, int_attr(op.attrs, "dim")) for source in cut)


def _is_split(value: Value, dim: int) -> bool:
    return value.sharding is not None and bool(value.sharding.dims[dim].axes)


def _joined(op: Op, parts: Sequence[Part]) -> Sequence[Op]:
    """What the parts are of, padded and cut to the result's shape, one selected over the other by position."""
    dim, result = int_attr(op.attrs, "dim"), op.result
    b, sharding, n = RegionBuilder(span=op.span, cause=op.cause), result.sharding, result.shape[dim]
    fill = b.op("constant", name="fill", value=unseen(result.dtype), type=TensorType((), result.dtype))
    counter, none = result.type.with_dtype(s32), (0,) * result.type.rank
    position = b.op("iota", name="position", sharding=sharding, type=counter, dim=dim)
    joined: Value | None = None
    offset = 0
    for part in parts:
        source, low = part.source, offset - part.start
        before, behind = ((*none[:dim], edge, *none[dim + 1 :]) for edge in (low, n - low - source.shape[dim]))
        moved = b.op("pad", source, fill, name=source.name, sharding=sharding, low=before, high=behind)
        if joined is not None:
            bound = b.op("constant", name="bound", sharding=sharding, value=offset, type=counter)
            is_before = b.op("compare", position, bound, name="before", sharding=sharding, direction="LT")
            moved = b.op("select", is_before, joined, moved, name=result.name, sharding=sharding)
        joined, offset = moved, offset + part.size
    return (*b.ops[:-1], replace(b.ops[-1], results=op.results))
