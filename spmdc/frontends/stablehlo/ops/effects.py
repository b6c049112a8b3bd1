"""Ops that do not only compute: effects, and shapes at run time. Each has a reason."""

from __future__ import annotations

from jaxlib.mlir import ir as mlir

from spmdc.frontends.stablehlo.attributes import int_of
from spmdc.frontends.stablehlo.scope import Bound, Converter, Scope, converts

_DYNAMIC = "a shape is known only when the program runs"
_STATIC = "spmdc compiles for static shapes: give shapes, paddings and limits as constants"


def _refusing(code: str, why: str, help: str) -> Converter:
    def refuse(op: mlir.Operation, scope: Scope) -> Bound:
        raise scope.refuse(op, why, code=code, help=help)

    return refuse


converts("infeed", "outfeed", "send", "recv")(
    _refusing("E704", "a program here has no effects", "give what is fed in as an argument, and return what is fed out")
)
converts(
    "dynamic_broadcast_in_dim", "dynamic_conv", "dynamic_gather", "dynamic_iota", "dynamic_pad", "dynamic_reshape",
    "real_dynamic_slice",
)(_refusing("E703", _DYNAMIC, _STATIC))  # fmt: skip


@converts("get_dimension_size")
def _size(op: mlir.Operation, scope: Scope) -> Bound:
    (operand,), (type,) = scope.operands(op), scope.result_types(op)
    return scope.full(operand.shape[int_of(op.attributes["dimension"])], type)


@converts("set_dimension_size")
def _set_size(op: mlir.Operation, scope: Scope) -> Bound:
    """The operand, if the dim is known to be as large as it is."""
    operand, size = scope.operands(op)
    if scope.number(size) != operand.shape[int_of(op.attributes["dimension"])]:
        raise scope.refuse(op, _DYNAMIC, code="E703", help=_STATIC)
    return operand
