"""Asynchronous ops, a start and a done, are imported as one op, and their tokens order nothing."""

from __future__ import annotations

from jaxlib.mlir import ir as mlir

from spmdc.frontends.stablehlo.attributes import text_of
from spmdc.frontends.stablehlo.ops.control import call, inlined
from spmdc.frontends.stablehlo.scope import Bound, Scope, converts


@converts("async_start")
def _start(op: mlir.Operation, scope: Scope) -> Bound:
    """The results. The handle that stands for them until the done is a tuple of them."""
    if len(op.regions):
        return tuple(inlined(op.regions[0].blocks[0], scope, scope.operands(op)))
    return tuple(call(op, scope, text_of(op.attributes["called_computation"])))


@converts("async_update")
def _update(op: mlir.Operation, scope: Scope) -> Bound:
    return scope.bound(op.operands[0])


@converts("async_done")
def _done(op: mlir.Operation, scope: Scope) -> list[Bound]:
    computed = scope.bound(op.operands[0])
    assert isinstance(computed, tuple), op
    return list(computed)


@converts("create_token", "after_all")
def _token(op: mlir.Operation, scope: Scope) -> list[Bound]:
    """No values: effects happen in the order in which they are written."""
    return []
