"""Scatters whose body is any function and whose updates may meet: a loop over the updates, in their order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ir.ops.addressing import box_sizes
from ir.program import Attr, Value
from spmdc.frontends.stablehlo.ops.control import counted_loop
from spmdc.frontends.stablehlo.ops.reduction import mapped
from spmdc.frontends.stablehlo.scope import Scope


def one_by_one(
    scope: Scope,
    function: str,
    operands: Sequence[Value],
    indices: Value,
    updates: Sequence[Value],
    attrs: Mapping[str, Attr],
) -> list[Value]:
    """The operands after all updates: each takes the place of what the function returns for the element and for it."""
    window = _dims(attrs, "update_window_dims")
    starts = _starts(scope, indices, attrs)
    boxes = [_boxes(scope, update, window) for update in updates]
    inside = tuple(range(len(window)))
    collapsed = (*_dims(attrs, "inserted_window_dims"), *_dims(attrs, "input_batching_dims"))
    start_map = (*_dims(attrs, "scatter_dims_to_operand_dims"), *_dims(attrs, "input_batching_dims"))
    sizes = box_sizes(dict(attrs), operands[0].type, updates[0].shape)
    reading: dict[str, Attr] = {
        "offset_dims": inside, "collapsed_slice_dims": tuple(sorted(collapsed)), "operand_batching_dims": (),
        "indices_batching_dims": (), "start_index_map": start_map, "index_vector_dim": 0, "slice_sizes": sizes,
    }  # fmt: skip
    writing: dict[str, Attr] = {
        "update_window_dims": inside, "inserted_window_dims": tuple(sorted(collapsed)), "input_batching_dims": (),
        "scatter_indices_batching_dims": (), "scatter_dims_to_operand_dims": start_map, "index_vector_dim": 0,
        "unique_indices": True, "kind": "replace",
    }  # fmt: skip

    def step(scope: Scope, i: Value, xs: list[Value]) -> list[Value]:
        start, new = _row(scope, starts, i), [_row(scope, box, i) for box in boxes]
        changed = mapped(scope, function, [*(scope.emit("gather", x, start, **reading) for x in xs), *new])
        return [scope.emit("scatter", x, start, c, **writing) for x, c in zip(xs, changed, strict=True)]

    return counted_loop(scope, starts.shape[0], operands, step)


def _dims(attrs: Mapping[str, Attr], name: str) -> tuple[int, ...]:
    found = attrs[name]
    assert isinstance(found, tuple), name
    return tuple(int(d) for d in found if isinstance(d, int))


def _starts(scope: Scope, indices: Value, attrs: Mapping[str, Attr]) -> Value:
    """Where each update goes, a row for each: also along the dims that count as a batch in operand and indices."""
    at, rank = attrs["index_vector_dim"], indices.type.rank
    assert isinstance(at, int)
    if at == rank:
        indices = scope.emit("reshape", indices, shape=(*indices.shape, 1))
        rank += 1
    elif at < rank - 1:
        indices = scope.emit("transpose", indices, perm=(*(d for d in range(rank) if d != at), at))
    counted = indices.type.with_shape((*indices.shape[:-1], 1))
    batch = [d - (d > at) for d in _dims(attrs, "scatter_indices_batching_dims")]
    parts = [indices, *(scope.emit("iota", type=counted, dim=d) for d in batch)]
    rows = parts[0] if len(parts) == 1 else scope.emit("concatenate", *parts, dim=rank - 1)
    return scope.emit("reshape", rows, shape=(math.prod(rows.shape[:-1]), rows.shape[-1]))


def _boxes(scope: Scope, update: Value, window: Sequence[int]) -> Value:
    """The updates, a row for each."""
    perm = (*(d for d in range(update.type.rank) if d not in window), *window)
    ordered = update if perm == tuple(range(len(perm))) else scope.emit("transpose", update, perm=perm)
    count = math.prod(ordered.shape[: len(perm) - len(window)])
    return scope.emit("reshape", ordered, shape=(count, *ordered.shape[len(perm) - len(window) :]))


def _row(scope: Scope, rows: Value, i: Value) -> Value:
    zero = scope.full(0, i.type)
    starts = [i, *[zero] * (rows.type.rank - 1)]
    row = scope.emit("dynamic_slice", rows, *starts, sizes=(1, *rows.shape[1:]))
    return scope.emit("reshape", row, shape=rows.shape[1:])
