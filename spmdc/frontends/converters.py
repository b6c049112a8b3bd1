"""The converter of each MLIR op; importing this module registers them all."""

from __future__ import annotations

from jaxlib.mlir import ir as mlir

from spmdc.frontends import (
    decompositions,
    ops_contraction,
    ops_control,
    ops_custom,
    ops_effects,
    ops_elementwise,
    ops_host,
    ops_indexing,
    ops_layout,
    ops_linalg,
    ops_manual,
    ops_normalization,
    ops_random,
    ops_reduction,
    ops_sharding,
    ops_sorting,
    ops_window,
)
from spmdc.frontends.attributes import text_of
from spmdc.frontends.scope import CONVERTERS, Converter, Scope

__all__ = [
    "decompositions",
    "find",
    "ops_contraction",
    "ops_control",
    "ops_custom",
    "ops_effects",
    "ops_elementwise",
    "ops_host",
    "ops_indexing",
    "ops_layout",
    "ops_linalg",
    "ops_manual",
    "ops_normalization",
    "ops_random",
    "ops_reduction",
    "ops_sharding",
    "ops_sorting",
    "ops_window",
]


def find(op: mlir.Operation, scope: Scope) -> Converter:
    """The op's converter; a custom call's may be that of its target. Raises SpmdcError (E702) if there is none."""
    name = op.name.partition(".")[2]
    converter = CONVERTERS.get(op.name) or CONVERTERS.get(name)
    if name == "custom_call":
        converter = CONVERTERS.get(f"custom_call @{text_of(op.attributes['call_target_name'])}", converter)
    if converter is None:
        raise scope.refuse(op, "there is no such op here", help="spmdc imports StableHLO, CHLO and Shardy's sdy")
    return converter
