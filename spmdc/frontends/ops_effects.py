"""Ops that do not compute: effects, and what needs shapes at run time. Each tells why."""

from __future__ import annotations

from jaxlib.mlir import ir as mlir

from spmdc.frontends.attributes import int_of
from spmdc.frontends.scope import Bound, Scope, converts


@converts(
    "after_all", "create_token", "infeed", "outfeed", "send", "recv", "async_start", "async_done", "async_update"
)  # fmt: skip
def _effect(op: mlir.Operation, scope: Scope) -> list[Bound]:
    raise scope.refuse(
        op,
        "a program here has no effects",
        code="E704",
        help="give what is fed in as an argument, and return what is fed out",
    )


@converts(
    "dynamic_broadcast_in_dim", "dynamic_conv", "dynamic_gather", "dynamic_iota", "dynamic_pad", "dynamic_reshape",
    "real_dynamic_slice", "set_dimension_size",
)  # fmt: skip
def _dynamic(op: mlir.Operation, scope: Scope) -> list[Bound]:
    raise scope.refuse(
        op,
        "a shape is known only when the program runs",
        code="E703",
        help="spmdc compiles for static shapes: give shapes, paddings and limits as constants",
    )


@converts("get_dimension_size")
def _size(op: mlir.Operation, scope: Scope) -> Bound:
    (operand,), (type,) = scope.operands(op), scope.result_types(op)
    return scope.full(operand.shape[int_of(op.attributes["dimension"])], type)
