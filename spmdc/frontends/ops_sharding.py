"""Annotations: Shardy's constraints, and the custom calls by which JAX and HLO say them."""

from __future__ import annotations

from jaxlib.mlir import ir as mlir

from ir.program import Value
from ir.sharding import Sharding
from spmdc.frontends.annotation_text import CALL_TARGET, decode
from spmdc.frontends.attributes import text_of
from spmdc.frontends.scope import Bound, Scope, converts


def annotated(scope: Scope, value: Value, sharding: Sharding | None) -> Value:
    """The value, placed so."""
    if sharding is None:
        return value
    return scope.builder.op("shard", value, name=value.name, sharding=sharding)


@converts("sdy.sharding_constraint", "sdy.reshard")
def _constraint(op: mlir.Operation, scope: Scope) -> Value:
    (operand,) = scope.operands(op)
    text = str(op.attributes["sharding"])
    return annotated(scope, operand, scope.module.shardings.shardy(text, operand.type.rank, scope.builder.span))


@converts(f"custom_call @{CALL_TARGET}")
def _annotation(op: mlir.Operation, scope: Scope) -> Value:
    (operand,) = scope.operands(op)
    sharding = decode(text_of(op.attributes["backend_config"]))
    return annotated(scope, operand, scope.module.shardings.adopt(sharding))


@converts("sdy.propagation_barrier")
def _barrier(op: mlir.Operation, scope: Scope) -> Bound:
    """A hint about where propagation should go, which nothing here needs."""
    return scope.bound(op.operands[0])
