"""Ops that do not only compute: effects, numbers drawn anew each time, and shapes at run time. Each has a reason."""

from __future__ import annotations

from jaxlib.mlir import ir as mlir

from spmdc.frontends.stablehlo.attributes import int_of
from spmdc.frontends.stablehlo.scope import Bound, Converter, Scope, converts


def _refusing(code: str, why: str, help: str) -> Converter:
    def refuse(op: mlir.Operation, scope: Scope) -> Bound:
        raise scope.refuse(op, why, code=code, help=help)

    return refuse


converts("after_all", "create_token", "infeed", "outfeed", "send", "recv", "async_start", "async_done", "async_update")(
    _refusing("E704", "a program here has no effects", "give what is fed in as an argument, and return what is fed out")
)
converts("rng", "xla.rng_get_and_update_state")(
    _refusing(
        "E704",
        "it draws other numbers each time, and a program here computes the same from the same arguments",
        "draw with rng_bit_generator, or jax.random, from a state that is an argument",
    )
)
converts(
    "dynamic_broadcast_in_dim", "dynamic_conv", "dynamic_gather", "dynamic_iota", "dynamic_pad", "dynamic_reshape",
    "real_dynamic_slice", "set_dimension_size",
)(
    _refusing(
        "E703",
        "a shape is known only when the program runs",
        "spmdc compiles for static shapes: give shapes, paddings and limits as constants",
    )
)  # fmt: skip


@converts("get_dimension_size")
def _size(op: mlir.Operation, scope: Scope) -> Bound:
    (operand,), (type,) = scope.operands(op), scope.result_types(op)
    return scope.full(operand.shape[int_of(op.attributes["dimension"])], type)
