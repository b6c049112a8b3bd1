"""The converter of each MLIR op; importing this module registers them all."""

from __future__ import annotations

from jaxlib.mlir import ir as mlir

from spmdc.frontends import (
    ops_contraction,
    ops_control,
    ops_elementwise,
    ops_layout,
    ops_reduction,
    ops_sharding,
)
from spmdc.frontends.attributes import text_of
from spmdc.frontends.scope import CONVERTERS, Converter, Scope

__all__ = ["find", "ops_contraction", "ops_control", "ops_elementwise", "ops_layout", "ops_reduction", "ops_sharding"]


def find(op: mlir.Operation, scope: Scope) -> Converter:
    """The op's converter. Raises SpmdcError (E702) if there is none."""
    name = op.name.partition(".")[2]
    if name == "custom_call":
        target = text_of(op.attributes["call_target_name"])
        name = f"custom_call @{target}"
        if name not in CONVERTERS:
            help_text = "write the function without it, or compute that part outside of the program"
            raise scope.refuse(op, f"spmdc does not know what the custom call @{target} computes", help=help_text)
    converter = CONVERTERS.get(op.name) or CONVERTERS.get(name)
    if converter is None:
        raise scope.refuse(op, "there is no such op here", help="spmdc imports StableHLO, CHLO and Shardy's sdy")
    return converter
