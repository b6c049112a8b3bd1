"""Random bits."""

from __future__ import annotations

from jaxlib.mlir import ir as mlir

from ir.types import DTYPES, TensorType
from spmdc.frontends.stablehlo.attributes import word_of
from spmdc.frontends.stablehlo.scope import Bound, Scope, converts


@converts("rng_bit_generator")
def _rng_bit_generator(op: mlir.Operation, scope: Scope) -> list[Bound]:
    (state,), (_, type) = scope.operands(op), scope.result_types(op)
    algorithm = word_of(op.attributes["rng_algorithm"])
    drawn = TensorType(type.shape, DTYPES[f"u{type.dtype.bits}"])
    found = scope.builder.append("rng_bit_generator", [state], {"type": drawn, "algorithm": algorithm})
    bits = found[1] if type == drawn else scope.emit("bitcast_convert", found[1], dtype=type.dtype)
    return [found[0], bits]
