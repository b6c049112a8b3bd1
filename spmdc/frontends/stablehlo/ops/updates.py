"""Scatters whose body is any function and whose updates may meet: a loop over the updates, in their order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ir.ops.addressing import box_sizes
from ir.program import Attr, Value
from ir.types import TensorType, s32
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
    count = starts.shape[0]
    inside = tuple(range(len(window)))
    collapsed = (*_dims(attrs, "inserted_window_dims"), *_dims(attrs, "input_batching_dims"))
    start_map = (*_dims(attrs, "scatter_dims_to_operand_dims"), *_dims(attrs, "input_batching_dims"))
    scalar, types = TensorType((), s32), [v.type for v in operands]
    test, step = scope.inner(), scope.inner()
    i, *_ = (test.builder.param(name, t) for name, t in (("i", scalar), *(("x", t) for t in types)))
    condition = test.builder.region(test.emit("compare", i, test.full(count, scalar), direction="LT"))
    i, *xs = (step.builder.param(name, t) for name, t in (("i", scalar), *(("x", t) for t in types)))
    start = _row(step, starts, i)
    new = [_row(step, box, i) for box in boxes]
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
    old = [step.builder.append("gather", [x, start], reading)[0] for x in xs]
    changed = mapped(step, function, [*old, *new])
    written = [step.builder.append("scatter", [x, start, c], writing)[0] for x, c in zip(xs, changed, strict=True)]
    body = step.builder.region(step.emit("add", i, step.full(1, scalar)), *written)
    carried = [scope.full(0, scalar), *operands]
    return list(scope.append("while", carried, {"trip_count": count}, [scalar, *types], (condition, body)))[1:]


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
