"""Boxes whose starts are constants, where dims are split of which they have a part only.

Who needs what is then known: a dynamic_slice is a slice, and an update is padded to the operand's shape and selected.
Both are exchanges of boxes, where at computed starts what is read must be summed, and what is written gathered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ir.builder import RegionBuilder
from ir.ops.creation import constant_value
from ir.program import Attr, Op, Value
from ir.types import TensorType, s32
from passes.partition.registry import Constants, Surroundings, rewrites


def constants_of(ops: Iterable[Op]) -> Constants:
    """The integers that are constants."""
    found = ((op, constant_value(op)) for op in ops)
    return {op.result: int(n) for op, n in found if isinstance(n, int) and op.result.dtype.is_integer}


@rewrites("dynamic_slice", "dynamic_update_slice")
def with_static_starts(op: Op, at: Surroundings) -> Sequence[Op]:
    """Ops that do the same; the op itself where its starts are not known, or nothing is split that it has a part of."""
    constants, reads = at.constants, op.name == "dynamic_slice"
    x, starts = op.operands[0], op.operands[1:] if reads else op.operands[2:]
    moved, sizes = (x, op.result.shape) if reads else (op.operands[1], op.operands[1].shape)
    partial = [d for d, (n, size) in enumerate(zip(x.shape, sizes, strict=True)) if size != n]
    if not any(at.is_split(moved, d) for d in partial) or not all(v in constants for v in starts):
        return (op,)
    low = tuple(min(max(constants[v], 0), n - size) for v, n, size in zip(starts, x.shape, sizes, strict=True))
    end = tuple(start + size for start, size in zip(low, sizes, strict=True))
    if reads:
        attrs: dict[str, Attr] = {"start": low, "limit": end, "stride": ()}
        return (replace(op, name="slice", operands=(x,), attrs=attrs),)
    return _written(op, low, end, partial)


def _written(op: Op, low: tuple[int, ...], end: tuple[int, ...], partial: Sequence[int]) -> Sequence[Op]:
    """The update, padded, where it is in the operand; of dims that are not `partial` it has all."""
    b, sharding = RegionBuilder(span=op.span, cause=op.cause), op.result.sharding
    x, update = op.operands[:2]
    unseen = False if x.dtype.kind == "pred" else 0 if x.dtype.has_zero else x.dtype.lowest
    zero = b.op("constant", name="fill", value=unseen, type=TensorType((), x.dtype))
    high = tuple(n - e for n, e in zip(x.shape, end, strict=True))
    new = b.op("pad", update, zero, name=update.name, sharding=sharding, low=low, high=high)
    counter = x.type.with_dtype(s32)
    inside: Value | None = None
    for d in partial:
        position = b.op("iota", name="position", sharding=sharding, type=counter, dim=d)
        for bound, direction in ((low[d], "GE"), (end[d], "LT")):
            limit = b.op("constant", name="bound", sharding=sharding, value=bound, type=counter)
            side = b.op("compare", position, limit, name="inside", sharding=sharding, direction=direction)
            inside = side if inside is None else b.op("and", inside, side, name="inside", sharding=sharding)
    assert inside is not None, "an update as large as its operand is split in no part of it"
    b.op("select", inside, new, x, name=op.result.name)
    return (*b.ops[:-1], replace(b.ops[-1], results=op.results))
