"""The converter of an MLIR op."""

from __future__ import annotations

from jaxlib.mlir import ir as mlir

from spmdc.frontends.stablehlo.attributes import text_of
from spmdc.frontends.stablehlo.ops import CONVERTERS
from spmdc.frontends.stablehlo.scope import Converter, Scope


def find(op: mlir.Operation, scope: Scope) -> Converter:
    """The op's converter; a custom call's may be that of its target. Raises SpmdcError (E702) if there is none."""
    name = op.name.partition(".")[2]
    converter = CONVERTERS.get(op.name) or CONVERTERS.get(name)
    if name == "custom_call":
        converter = CONVERTERS.get(f"custom_call @{text_of(op.attributes['call_target_name'])}", converter)
    if converter is None:
        raise scope.refuse(op, "there is no such op here", help="spmdc imports StableHLO, CHLO and Shardy's sdy")
    return converter
