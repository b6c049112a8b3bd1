"""Scatters with any body whose updates may have the same elements: a loop over the updates, in order."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ir.ops.addressing import SCATTER, box_sizes, reading
from ir.ops.declaration import Attrs
from ir.ops.rule_helpers import int_attr, ints_attr
from ir.program import Attr, Value
from spmdc.frontends.stablehlo.ops.control import counted_loop
from spmdc.frontends.stablehlo.ops.reduction import mapped
from spmdc.frontends.stablehlo.scope import Scope


def one_by_one(
    scope: Scope, function: str, operands: Sequence[Value], indices: Value, updates: Sequence[Value], attrs: Attrs
) -> list[Value]:
    """The operands after all updates: each element is replaced by the function's result for it and the update."""
    window, batching = ints_attr(attrs, SCATTER.window), ints_attr(attrs, SCATTER.batching)
    starts = _starts(scope, indices, attrs)
    boxes = [_boxes(scope, update, window) for update in updates]
    inside = tuple(range(len(window)))
    dropped = tuple(sorted((*ints_attr(attrs, SCATTER.dropped), *batching)))
    addressed = (*ints_attr(attrs, SCATTER.addressed), *batching)
    writing: dict[str, Attr] = {
        SCATTER.window: inside, SCATTER.dropped: dropped, SCATTER.batching: (), SCATTER.indices_batching: (),
        SCATTER.addressed: addressed, "index_vector_dim": 0, "unique_indices": True, "kind": "replace",
    }  # fmt: skip
    boxes_of_one = reading(writing, box_sizes(attrs, operands[0].type, updates[0].shape))

    def step(scope: Scope, i: Value, xs: list[Value]) -> list[Value]:
        start, new = _row(scope, starts, i), [_row(scope, box, i) for box in boxes]
        changed = mapped(scope, function, [*(scope.emit("gather", x, start, **boxes_of_one) for x in xs), *new])
        return [scope.emit("scatter", x, start, c, **writing) for x, c in zip(xs, changed, strict=True)]

    return counted_loop(scope, starts.shape[0], operands, step)


def _starts(scope: Scope, indices: Value, attrs: Attrs) -> Value:
    """The starts of the updates, one row for each, including those along batching dims of operand and indices."""
    at, rank = int_attr(attrs, "index_vector_dim"), indices.type.rank
    if at == rank:
        indices = scope.emit("reshape", indices, shape=(*indices.shape, 1))
        rank += 1
    elif at < rank - 1:
        indices = scope.emit("transpose", indices, perm=(*(d for d in range(rank) if d != at), at))
    counted = indices.type.with_shape((*indices.shape[:-1], 1))
    batch = [d - (d > at) for d in ints_attr(attrs, SCATTER.indices_batching)]
    parts = [indices, *(scope.emit("iota", type=counted, dim=d) for d in batch)]
    rows = parts[0] if len(parts) == 1 else scope.emit("concatenate", *parts, dim=rank - 1)
    return scope.emit("reshape", rows, shape=(math.prod(rows.shape[:-1]), rows.shape[-1]))


def _boxes(scope: Scope, update: Value, window: Sequence[int]) -> Value:
    """The updates, one row for each."""
    perm = (*(d for d in range(update.type.rank) if d not in window), *window)
    ordered = scope.transposed(update, perm)
    count = math.prod(ordered.shape[: len(perm) - len(window)])
    return scope.emit("reshape", ordered, shape=(count, *ordered.shape[len(perm) - len(window) :]))


def _row(scope: Scope, rows: Value, i: Value) -> Value:
    zero = scope.full(0, i.type)
    starts = [i, *[zero] * (rows.type.rank - 1)]
    row = scope.emit("dynamic_slice", rows, *starts, sizes=(1, *rows.shape[1:]))
    return scope.emit("reshape", row, shape=rows.shape[1:])
