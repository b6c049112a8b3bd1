"""Reads and writes at computed indices."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir as mlir
from jaxlib.mlir.dialects import stablehlo

from ir.ops.addressing import box_sizes, reading
from ir.program import Attr, Value
from ir.types import pred, s32
from spmdc.frontends.stablehlo.attributes import flag, int_of, ints
from spmdc.frontends.stablehlo.device_numbers import entry
from spmdc.frontends.stablehlo.ops.control import counted_loop
from spmdc.frontends.stablehlo.ops.reducers import Expr, arg, binary_kind, expressions
from spmdc.frontends.stablehlo.ops.reduction import body_function, mapped
from spmdc.frontends.stablehlo.ops.updates import one_by_one
from spmdc.frontends.stablehlo.scope import Bound, Scope, converts

_SCATTERED = ("sum", "prod", "max", "min")
_AS_EXTREME = {"and": "min", "or": "max"}
"""Logical ops on booleans as extremes, in the order false, true."""


@converts("dynamic_slice")
def _dynamic_slice(op: mlir.Operation, scope: Scope) -> Value:
    operands, sizes = scope.operands(op), ints(op.attributes["slice_sizes"])
    if operands[0].shape == sizes:
        return operands[0]
    number = entry(scope, *operands) if sizes == (1,) else None
    return scope.emit("dynamic_slice", *operands, sizes=sizes) if number is None else number


@converts("dynamic_update_slice")
def _dynamic_update_slice(op: mlir.Operation, scope: Scope) -> Value:
    return scope.emit("dynamic_update_slice", *scope.operands(op))


@converts("gather")
def _gather(op: mlir.Operation, scope: Scope) -> Value:
    dims = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    return scope.emit(
        "gather",
        *scope.operands(op),
        offset_dims=tuple(dims.offset_dims),
        collapsed_slice_dims=tuple(dims.collapsed_slice_dims),
        operand_batching_dims=tuple(dims.operand_batching_dims),
        indices_batching_dims=tuple(dims.start_indices_batching_dims),
        start_index_map=tuple(dims.start_index_map),
        index_vector_dim=dims.index_vector_dim,
        slice_sizes=ints(op.attributes["slice_sizes"]),
    )


@converts("torch_index_select")
def _index_select(op: mlir.Operation, scope: Scope) -> Value:
    operand, indices = scope.operands(op)
    dim, batch = int_of(op.attributes["dim"]), int_of(op.attributes["batch_dims"])
    shared = tuple(range(batch))
    rank, scanned = operand.type.rank, indices.type.rank - batch
    return scope.emit(
        "gather",
        operand,
        indices,
        offset_dims=(*range(batch, dim), *range(dim + scanned, rank - 1 + scanned)),
        collapsed_slice_dims=(dim,),
        operand_batching_dims=shared,
        indices_batching_dims=shared,
        start_index_map=(dim,),
        index_vector_dim=indices.type.rank,
        slice_sizes=tuple(1 if d < batch or d == dim else n for d, n in enumerate(operand.shape)),
    )


@converts("scatter")
def _scatter(op: mlir.Operation, scope: Scope) -> list[Bound]:
    a = op.attributes
    dims = stablehlo.ScatterDimensionNumbers(a["scatter_dimension_numbers"])
    attrs: dict[str, Attr] = {
        "update_window_dims": tuple(dims.update_window_dims),
        "inserted_window_dims": tuple(dims.inserted_window_dims),
        "input_batching_dims": tuple(dims.input_batching_dims),
        "scatter_indices_batching_dims": tuple(dims.scatter_indices_batching_dims),
        "scatter_dims_to_operand_dims": tuple(dims.scattered_dims_to_operand_dims),
        "index_vector_dim": dims.index_vector_dim,
        "unique_indices": flag(op, "unique_indices"),
    }
    values, n = scope.operands(op), len(op.results)
    operands, indices, updates = values[:n], values[n], values[n + 1 :]
    body = expressions(op.regions[0])
    kinds = [_kind(e, i, n, v) for i, (e, v) in enumerate(zip(body, operands, strict=True))]
    if any(kind is None for kind in kinds):
        return list(_scatter_any(op, scope, operands, indices, updates, attrs))
    return [
        _scatter_one(scope, operand, indices, update, str(kind), attrs)
        for operand, update, kind in zip(operands, updates, kinds, strict=True)
    ]


def _kind(body: Expr, i: int, n: int, operand: Value) -> str | None:
    """How an update changes its element, if it does so independently of others and by a supported reduction."""
    old, new = arg(i), arg(n + i)
    if body == new:
        return "replace"
    if body == old:
        return "keep"
    if body == ("subtract", None, old, new):
        return "subtract"
    kind = binary_kind(body, i, n + i, operand.dtype)
    if kind is not None and operand.dtype == pred:
        return _AS_EXTREME.get(kind, kind)
    return kind if kind in _SCATTERED else None


def _scatter_one(
    scope: Scope, operand: Value, indices: Value, update: Value, kind: str, attrs: dict[str, Attr]
) -> Value:
    if kind == "keep":
        return operand
    if kind == "subtract":
        kind, update = "sum", scope.emit("negate", update)
    return scope.emit("scatter", operand, indices, update, **attrs, kind=kind)


def _scatter_any(
    op: mlir.Operation,
    scope: Scope,
    operands: Sequence[Value],
    indices: Value,
    updates: Sequence[Value],
    attrs: dict[str, Attr],
) -> list[Value]:
    """A scatter with any body: elements are read, combined, and written back, all at once if no two updates have the
    same element."""
    if not attrs["unique_indices"] and len(operands) == 1 and _ignores_the_update(op.regions[0]):
        return [_applied(op, scope, operands[0], indices, updates[0], attrs)]
    function = body_function(op, scope, op.regions[0], "update", [v.dtype for v in (*operands, *updates)])
    if not attrs["unique_indices"]:
        return one_by_one(scope, function, operands, indices, updates, attrs)
    old = [
        scope.emit("gather", operand, indices, **reading(attrs, box_sizes(attrs, operand.type, update.shape)))
        for operand, update in zip(operands, updates, strict=True)
    ]
    new = mapped(scope, function, [*old, *updates])
    return [
        scope.emit("scatter", operand, indices, update, **attrs, kind="replace")
        for operand, update in zip(operands, new, strict=True)
    ]


def _ignores_the_update(region: mlir.Region) -> bool:
    """Whether the region's ops use no argument but the first: the element."""
    _, *others = region.blocks[0].arguments
    return not any(True for a in others for _ in a.uses)


def _applied(
    op: mlir.Operation, scope: Scope, operand: Value, indices: Value, update: Value, attrs: dict[str, Attr]
) -> Value:
    """A function of the element only, applied as often as the element occurs: in a loop, to all elements that are not
    done."""
    function = body_function(op, scope, op.regions[0], "update", [operand.dtype, update.dtype])
    met = scope.full(0, operand.type.with_dtype(s32))
    met = scope.emit("scatter", met, indices, scope.full(1, update.type.with_dtype(s32)), **attrs, kind="sum")
    most = scope.emit("reduce", met, dims=tuple(range(operand.type.rank)), kind="max")
    most = scope.emit("maximum", most, scope.full(0, most.type))

    def step(scope: Scope, i: Value, xs: list[Value]) -> list[Value]:
        (x,) = xs
        pending = scope.emit("compare", scope.broadcast(i, met.type), met, direction="LT")
        (changed,) = mapped(scope, function, [x, x if update.dtype == x.dtype else scope.full(0, update.type)])
        return [scope.emit("select", pending, changed, x)]

    return counted_loop(scope, most, [operand], step)[0]
