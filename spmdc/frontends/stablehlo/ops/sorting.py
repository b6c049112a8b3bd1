"""sort by keys that a comparator compares, and top_k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxlib.mlir import ir as mlir

from ir.ops.layout import slice_along
from ir.program import Value
from ir.types import DType, s32
from spmdc.frontends.stablehlo.attributes import flag, int_of, items, text_of, typed_options
from spmdc.frontends.stablehlo.ops.comparators import sorted_by
from spmdc.frontends.stablehlo.ops.elementwise import total_order_key
from spmdc.frontends.stablehlo.ops.reducers import (
    Expr,
    SortKey,
    arg,
    canonical_operand,
    expressions,
    is_elementwise,
    sort_keys,
)
from spmdc.frontends.stablehlo.scope import Bound, Scope, converts


@converts("sort")
def _sort(op: mlir.Operation, scope: Scope) -> list[Bound]:
    """A direct sort if the first operands are the keys; otherwise the comparator's keys are computed, and sorted with
    the operands."""
    operands = scope.operands(op)
    dim = int_of(op.attributes["dimension"]) if "dimension" in op.attributes else operands[0].type.rank - 1
    dim += operands[0].type.rank if dim < 0 else 0
    return _sorted(op, scope, operands, op.regions[0], dim, stable=flag(op, "is_stable"))


def _sorted(
    op: mlir.Operation, scope: Scope, operands: Sequence[Value], region: mlir.Region, dim: int, *, stable: bool
) -> list[Bound]:
    (comparator,) = expressions(region)
    keys = sort_keys(comparator)
    if keys is None or not all(is_elementwise(key.expression) for key in keys):
        return list(sorted_by(op, scope, operands, region, dim))
    descending = keys[0].descending
    if all(_is_plain(key, i, operands) and key.descending == descending for i, key in enumerate(keys)):
        return scope.emit_all("sort", *operands, dim=dim, descending=descending, num_keys=len(keys), stable=stable)
    made = [_key(scope, key, operands) for key in keys]
    found = scope.emit_all("sort", *made, *operands, dim=dim, num_keys=len(made), stable=stable)
    return found[len(made) :]


def _is_plain(key: SortKey, i: int, operands: Sequence[Value]) -> bool:
    """Whether the key is operand i as `sort` compares it: for floats, zeros are equal and NaN is last."""
    if i >= len(operands):
        return False
    if canonical_operand(key.expression) == 2 * i:
        return True
    return key.expression == ("arg", 2 * i) and not (key.order == "total" and operands[i].dtype.is_float)


def _key(scope: Scope, key: SortKey, operands: Sequence[Value]) -> Value:
    """Integers in the key's order."""
    value = lifted(scope, key.expression, operands)
    if value.dtype.is_float:
        if key.order != "total":
            value = _zeros_equal(scope, value)
        value = total_order_key(scope, value)
    return scope.emit("not", value) if key.descending else value


def _zeros_equal(scope: Scope, value: Value) -> Value:
    if value.dtype.has_zero:
        zero = scope.full(0.0, value.type)
        is_zero = scope.emit("compare", value, zero, direction="EQ")
        value = scope.emit("select", is_zero, zero, value)
    if not value.dtype.format.has_nan:
        return value
    is_nan = scope.emit("compare", value, value, direction="NE")
    return scope.emit("select", is_nan, scope.full(float("nan"), value.type), value)


def lifted(scope: Scope, expression: Expr, operands: Sequence[Value]) -> Value:
    """An expression over the first of two compared elements, computed for all elements at once."""
    if expression[0] == "arg":
        return operands[int(expression[1]) // 2]
    parts = [None if part[0] == "number" else lifted(scope, part, operands) for part in expression[2:]]
    like = next(v for v in (parts[1:] if expression[0] == "select" else parts) if v is not None)
    values = [
        scope.full(float(p[1]) if like.dtype.is_float else p[1], like.type) if v is None else v
        for p, v in zip(expression[2:], parts, strict=True)
    ]
    name, detail = expression[0], expression[1]
    if name == "compare":
        return scope.emit("compare", *values, direction=detail[0])
    if isinstance(detail, DType):
        return scope.emit(name, *values, dtype=detail)
    return scope.emit(name, *values)


def approximate_top_k(op: mlir.Operation, scope: Scope) -> list[Bound]:
    """The exact top_k, which is also what XLA computes if it has nothing faster. Raises SpmdcError (E702, E708).

    The operands are values and indices, followed by their initial values.
    """
    given = typed_options(op)
    called = items(op.attributes, "called_computations")
    if "reduction_dim" not in given or len(called) != 1:
        raise scope.refuse(op, "it lacks reduction_dim, or a comparator", help="lower the function with JAX")
    values, types = scope.operands(op)[:2], scope.result_types(op)
    dim, region = int_of(given["reduction_dim"]), scope.module.sources[text_of(called[0])].regions[0]
    (comparator,) = expressions(region)
    keys, rank = sort_keys(comparator), values[0].type.rank
    if not 0 <= dim < rank:
        raise scope.refuse(op, f"its reduction_dim is {dim}", help=f"dims are 0 to {rank - 1}")
    k = types[0].shape[dim]
    if keys and keys[0].descending and keys[0].expression == arg(0) and _counts_along(scope, values[1], dim):
        perm = (*(d for d in range(rank) if d != dim), dim)
        back = tuple(perm.index(d) for d in range(rank))
        x = values[0] if dim == rank - 1 else scope.emit("transpose", values[0], perm=perm)
        found = scope.builder.append("top_k", [x], {"k": k})
        return [v if dim == rank - 1 else scope.emit("transpose", v, perm=back) for v in found]
    ranked = _sorted(op, scope, values, region, dim, stable=True)
    return [scope.emit("slice", v, **slice_along(v.shape, dim, 0, k)) for v in ranked if isinstance(v, Value)]


def _counts_along(scope: Scope, value: Value, dim: int) -> bool:
    """Whether the elements are s32 indices along the dim, as far as this block shows."""
    maker = next((o for o in scope.builder.ops if value in o.results), None)
    return maker is not None and maker.name == "iota" and maker.attrs["dim"] == dim and value.dtype == s32


@converts("top_k", "topk")
def _top_k(op: mlir.Operation, scope: Scope) -> list[Bound]:
    return top_k(op, scope, {name: op.attributes[name] for name in op.attributes}, int_of(op.attributes["k"]))


def top_k(op: mlir.Operation, scope: Scope, settings: Mapping[str, mlir.Attribute], k: int) -> list[Bound]:
    """The k largest or smallest elements along the last dim, and their indices."""
    (value,) = scope.operands(op)
    if "largest" not in settings or int_of(settings["largest"]):
        return scope.emit_all("top_k", value, k=k)
    dim = value.type.rank - 1
    places = scope.emit("iota", type=value.type.with_dtype(s32), dim=dim)
    ordered = scope.builder.append("sort", [value, places], {"dim": dim, "num_keys": 1, "stable": True})
    return [scope.emit("slice", v, **slice_along(v.shape, dim, 0, k)) for v in ordered]
