"""Boxes at constant starts, along split dims that they do not have all of.

Which device needs what is then known at compile time: a dynamic_slice becomes a slice, and an update is padded to the
operand's shape and selected. Both are box exchanges, where computed starts require a sum of what is read, and a gather
of what is written. A box as large as the tensor can only begin at 0.

It is the other way round for a box of few elements, such as the last of all tokens: split, most of it would be padding,
so all devices need all of it, and it would be exchanged first and gathered then. A sum of what each device has of it is
enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ir.builder import RegionBuilder
from ir.mesh import axes_size
from ir.ops import OPS
from ir.ops.creation import constant_value
from ir.ops.rule_helpers import ints_attr
from ir.program import Attr, Op, Value
from ir.types import TensorType, s32
from passes.partition.registry import ALONG, Constants, Surroundings, rewrites
from passes.partition.shards import padding_of
from passes.signatures import signature_of

_MAX_STEPS = 4
"""How many elementwise ops a box is followed through to where it is put into place."""


def constants_of(ops: Iterable[Op]) -> Constants:
    """The integer constants that these ops make."""
    found = ((op, constant_value(op)) for op in ops)
    return {op.result: int(n) for op, n in found if isinstance(n, int) and op.result.dtype.is_integer}


@rewrites("dynamic_slice")
def read_at_static_starts(op: Op, at: Surroundings) -> Sequence[Op]:
    """A slice; the op itself if its starts are not known, or no dim that it has only a part of is split."""
    x, *starts = op.operands
    low = _low(x, op.result.shape, starts, x, at)
    if low is None or _is_summed(x, op.result, at):
        return (op,)
    attrs: dict[str, Attr] = {"start": low, "limit": _end(low, op.result.shape), "stride": ()}
    return (replace(op, name="slice", operands=(x,), attrs=attrs),)


@rewrites("slice")
def read_few_elements(op: Op, at: Surroundings) -> Sequence[Op]:
    """A dynamic_slice, if all devices need all of a box of few elements along split dims."""
    x, result = op.operands[0], op.result
    strides = zip(result.shape, ints_attr(op.attrs, "stride") or (1,) * x.type.rank, strict=True)
    if not _is_summed(x, result, at) or any(size > 1 and stride > 1 for size, stride in strides):
        return (op,)
    b = RegionBuilder(span=op.span, cause=op.cause)
    starts = [b.op("constant", name="start", value=n, type=TensorType((), s32)) for n in ints_attr(op.attrs, "start")]
    read = replace(op, name="dynamic_slice", operands=(x, *starts), attrs={"sizes": result.shape})
    return (*b.ops, read)


def _is_summed(x: Value, box: Value, at: Surroundings) -> bool:
    """Whether a box out of x is best read as a sum of what each device has of it: of at most half as many elements as
    there are shards, since a sum sends each twice. Not if it is put into place by an exchange of boxes itself, as a row
    that is repeated at an edge is, and not if any device can compute it."""
    split = [d for d in _partial(x, box.shape) if at.is_split(x, d)]
    have, wanted = at.wanted(x).axes, at.wanted(box).axes
    if not split or any(2 * box.shape[d] > axes_size(have[d]) or wanted[d] for d in split):
        return False
    return at.has_to_be_sent(x) and not any(_is_put_into_place(box, d, at) for d in split)


def _is_put_into_place(box: Value, dim: int, at: Surroundings) -> bool:
    """Whether some op moves elements of the box along that dim, or of what is computed from it element by element."""
    values = {box: None}
    for _ in range(_MAX_STEPS):
        users = [(v, user) for v in values for user in at.users(v)]
        if any(_moves_along(user, v, dim) for v, user in users):
            return True
        values = {user.result: None for _, user in users if OPS[user.name].family == "elementwise"}
    return False


def _moves_along(op: Op, operand: Value, dim: int) -> bool:
    rule = signature_of(op).rule
    if rule is None:
        return False
    tensor = rule.operands[op.operands.index(operand)]
    return any(rule.factors[f].kind in ALONG for f in tensor[dim])


def _low(
    x: Value, sizes: tuple[int, ...], starts: Sequence[Value], moved: Value, at: Surroundings
) -> tuple[int, ...] | None:
    """Where in x the box begins, if that is known, and the box has all of x, or only a part of a dim that is split in
    `moved`. A box that has all of a dim begins at 0."""
    partial = _partial(x, sizes)
    if partial and not any(at.is_split(moved, d) for d in partial):
        return None
    if not all(starts[d] in at.constants for d in partial):
        return None
    low = [0] * len(sizes)
    for d in partial:
        low[d] = min(max(at.constants[starts[d]], 0), x.shape[d] - sizes[d])
    return tuple(low)


def _partial(x: Value, sizes: tuple[int, ...]) -> list[int]:
    """The dims that a box of these sizes has only a part of."""
    return [d for d, (n, size) in enumerate(zip(x.shape, sizes, strict=True)) if size != n]


def _end(low: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(start + size for start, size in zip(low, sizes, strict=True))


@rewrites("dynamic_update_slice")
def write_at_static_starts(op: Op, at: Surroundings) -> Sequence[Op]:
    """The update, padded, selected where it is in the operand; the update itself if it is as large as that. The op
    itself if its starts are not known, or no dim that it has only a part of is split."""
    x, update, *starts = op.operands
    low = _low(x, update.shape, starts, update, at)
    if low is None:
        return (op,)
    end, partial = _end(low, update.shape), _partial(x, update.shape)
    if not partial:
        return (replace(op, name="reshape", operands=(update,), attrs={"shape": x.shape}),)
    b, sharding = RegionBuilder(span=op.span, cause=op.cause), op.result.sharding
    fill = padding_of(b, TensorType((), x.dtype))
    high = tuple(n - e for n, e in zip(x.shape, end, strict=True))
    new = b.op("pad", update, fill, name=update.name, sharding=sharding, low=low, high=high)
    counter = x.type.with_dtype(s32)
    inside: Value | None = None
    for d in partial:
        position = b.op("iota", name="position", sharding=sharding, type=counter, dim=d)
        for bound, direction in ((low[d], "GE"), (end[d], "LT")):
            limit = b.op("constant", name="bound", sharding=sharding, value=bound, type=counter)
            side = b.op("compare", position, limit, name="inside", sharding=sharding, direction=direction)
            inside = side if inside is None else b.op("and", inside, side, name="inside", sharding=sharding)
    assert inside is not None
    b.op("select", inside, new, x, name=op.result.name)
    return b.in_place_of(op)
