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
from spmdc.frontends.scope import CONVERTERS, Converter, Scope

__all__ = ["find", "ops_contraction", "ops_control", "ops_elementwise", "ops_layout", "ops_reduction", "ops_sharding"]


def find(op: mlir.Operation, scope: Scope) -> Converter:
    """The op's converter. Raises SpmdcError (E702) if there is none."""
    converter = CONVERTERS.get(op.name) or CONVERTERS.get(op.name.partition(".")[2])
    if converter is None:
        raise scope.refuse(op, "there is no such op here", help="spmdc imports StableHLO, CHLO and Shardy's sdy")
    return converter
