"""Dynamic shapes: ops with static types are imported, and others are rejected."""

from __future__ import annotations

from jaxlib.mlir import ir as mlir

from spmdc.frontends.stablehlo.attributes import int_of, ints
from spmdc.frontends.stablehlo.ops.layout import place
from spmdc.frontends.stablehlo.scope import Bound, Scope, converts

_DYNAMIC = "a shape is known only when the program runs"
_STATIC = "spmdc compiles for static shapes: give shapes, paddings and limits as constants"


@converts("dynamic_conv", "dynamic_gather", "dynamic_pad", "real_dynamic_slice")
def _dynamic(op: mlir.Operation, scope: Scope) -> Bound:
    raise scope.refuse(op, _DYNAMIC, code="E703", help=_STATIC)


@converts("dynamic_reshape", "dynamic_broadcast_in_dim", "dynamic_iota")
def _of_known_type(op: mlir.Operation, scope: Scope) -> Bound:
    """An op with its shape as an operand and a static type. The two agree, because the program is undefined
    otherwise."""
    (type,), a = scope.result_types(op), op.attributes
    if op.name.endswith("dynamic_iota"):
        return scope.emit("iota", type=type, dim=int_of(a["iota_dimension"]))
    if op.name.endswith("dynamic_broadcast_in_dim"):
        return place(scope, op, ints(a["broadcast_dimensions"]))
    return scope.emit("reshape", scope.operand(op.operands[0]), shape=type.shape)


@converts("get_dimension_size")
def _size(op: mlir.Operation, scope: Scope) -> Bound:
    (operand,), (type,) = scope.operands(op), scope.result_types(op)
    return scope.full(operand.shape[int_of(op.attributes["dimension"])], type)


@converts("set_dimension_size")
def _set_size(op: mlir.Operation, scope: Scope) -> Bound:
    """The operand, if the size is known to be that of the dim."""
    operand, size = scope.operands(op)
    if scope.number(size) != operand.shape[int_of(op.attributes["dimension"])]:
        raise scope.refuse(op, _DYNAMIC, code="E703", help=_STATIC)
    return operand
