"""Slices that are concatenated or padded along a split dim: each element is sent directly to the device that needs it.

By themselves, the slices would first be resharded to even shards of their own, and from there to the result's shards. A
rotation by one shard becomes a single permute to the next device. Slices of few rows can be cheaper by themselves: a
row that is repeated at an edge is the only one that is sent then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ir.builder import Names, RegionBuilder
from ir.dataflow import uses_of
from ir.mesh import Axes, axes_size
from ir.ops.rule_helpers import int_attr, ints_attr
from ir.program import Op, Program, Value, all_ops
from ir.sharding import shard_size
from ir.types import TensorType, s32
from passes.joined_parts import Part, Shift, parts_of, shift_of
from passes.partition.closed_sharding import Shardings
from passes.partition.options import PartitionOptions
from passes.partition.plan.sides import plain_query
from passes.partition.plan.strategies import StrategySelector
from passes.partition.reshard.planner import Resharder
from passes.partition.shards import padding_of
from passes.rewrite import map_program
from passes.signatures import signature_of
from passes.sub_axes import find_sub_axes


def join_what_is_cut(program: Program, options: PartitionOptions) -> Program:
    """The propagated program with such slices replaced: the tensors that they are cut from are shifted instead. That is
    done where devices receive no more or, if the tensors are split differently, where it takes no more time."""
    uses = uses_of(program)
    makers = uses.makers
    joined: dict[Op, Sequence[Part]] = {}
    shifted: dict[Op, Shift] = {}
    for op in all_ops(program):
        parts, shift = parts_of(op, makers.get), shift_of(op, makers.get)
        if _moves_shards(op, parts):
            joined[op] = parts
        elif shift is not None and _shifts_shards(op, shift):
            shifted[op] = shift
    if not joined and not shifted:
        return program
    names = Names.beside(*program.functions.values())
    options, sub_axes = options.for_meshes(program.meshes).for_choices(), find_sub_axes(program)
    selector = StrategySelector(Resharder(sub_axes, options.machine), options)
    shardings = Shardings(program.mesh, sub_axes)
    became: dict[Op, Sequence[Op]] = {op: (_shifted(op, shift),) for op, shift in shifted.items()}
    for op, parts in joined.items():
        cut = dict.fromkeys(v for v, part in zip(op.operands, parts, strict=True) if part.source is not v)
        slices = [makers[v] for v in cut if set(uses.users[v]) == {op}]
        together = _joined(op, parts, names)
        rows = _rows_received(op, parts, slices)
        costs = rows or [_seconds(selector, shardings, ops) for ops in (together, (*slices, op))]
        if costs[0] <= costs[1]:
            became[op] = together

    def each(op: Op) -> Iterable[Op]:
        return became.get(op, (op,))

    return map_program(program, each)


def _rows_received(op: Op, parts: Sequence[Part], slices: Sequence[Op]) -> tuple[int, int] | None:
    """The rows, along the concatenated dim, that the device receives that receives most: if the tensors that the slices
    are cut from are shifted, and if the slices are sent by themselves. None unless all are split in the same way, or
    not at all."""
    dim = int_attr(op.attrs, "dim")
    split = {_axes(v, dim) for v in (op.result, *op.operands, *(part.source for part in parts))} - {()}
    if len(split) != 1:
        return None
    devices = np.arange(axes_size(*split))

    def shards(value: Value) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the shards of a tensor begin and end."""
        n = value.shape[dim]
        if not _is_split(value, dim):
            return 0 * devices, 0 * devices + n
        shard = shard_size(n, *split)
        return np.minimum(devices * shard, n), np.minimum((devices + 1) * shard, n)

    def received(have: Value, want: Value, shift: int) -> NDArray[np.int64]:
        """The rows that each device lacks of one tensor for its shard of another, in which they are further behind."""
        (begin, stop), n = shards(have), have.shape[dim]
        first, end = (np.clip(at - shift, 0, n) for at in shards(want))
        owned = np.minimum(end, stop) - np.maximum(first, begin)
        lacked: NDArray[np.int64] = end - first - np.maximum(owned, 0)
        return lacked

    shifted, sent = np.zeros_like(devices), np.zeros_like(devices)
    offset = 0
    for part, value in zip(parts, op.operands, strict=True):
        shifted += received(part.source, op.result, offset - part.start)
        sent += received(value, op.result, offset)
        offset += part.size
    for cut in slices:
        start = ints_attr(cut.attrs, "start")[dim]
        sent += received(cut.operands[0], cut.result, -start)
    return int(shifted.max()), int(sent.max())


def _seconds(selector: StrategySelector, shardings: Shardings, ops: Sequence[Op]) -> float:
    """The time of ops one after another, each by itself, with operands and results sharded as propagated."""
    seconds = 0.0
    for op in ops:
        operands, results = (tuple(map(shardings.propagated, side)) for side in (op.operands, op.results))
        signature = signature_of(op)
        assert signature.rule is not None
        queries = [plain_query(op, rule, operands, results) for rule in (signature.rule, *signature.other_rules)]
        seconds += min(selector.choose(q).seconds for q in queries)
    return seconds


def _moves_shards(op: Op, parts: Sequence[Part]) -> bool:
    """Whether some part is cut from a split dim, and the concatenated dim is split too."""
    if not parts or not _is_split(op.result, int_attr(op.attrs, "dim")):
        return False
    cut = (part.source for part, value in zip(parts, op.operands, strict=True) if part.source is not value)
    return any(_is_split(source, int_attr(op.attrs, "dim")) for source in cut)


def _shifts_shards(op: Op, shift: Shift) -> bool:
    """Whether a dim that is cut and padded is split both before and after."""
    moved = (d for d, edges in enumerate(zip(shift.low, shift.high, strict=True)) if any(edges))
    return any(_is_split(shift.source, d) and _is_split(op.result, d) for d in moved)


def _shifted(op: Op, shift: Shift) -> Op:
    operands = shift.source, op.operands[1]
    return replace(op, operands=operands, attrs={**op.attrs, "low": shift.low, "high": shift.high})


def _axes(value: Value, dim: int) -> Axes:
    return value.sharding.dims[dim].axes if value.sharding is not None else ()


def _is_split(value: Value, dim: int) -> bool:
    return bool(_axes(value, dim))


def _joined(op: Op, parts: Sequence[Part], names: Names) -> Sequence[Op]:
    """The tensors that the parts are cut from, padded and cut to the result's shape, and selected by position."""
    dim, result = int_attr(op.attrs, "dim"), op.result
    b, sharding, n = RegionBuilder(names, span=op.span, cause=op.cause), result.sharding, result.shape[dim]
    fill = padding_of(b, TensorType((), result.dtype))
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
    return b.in_place_of(op)
