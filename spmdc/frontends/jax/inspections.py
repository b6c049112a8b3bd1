"""`jax.debug.inspect_array_sharding`: its callback is called with a value's sharding once propagation has decided
it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxlib.mlir import ir as mlir
from jaxlib.mlir.dialects import stablehlo

from ir.ops.host import host_function
from ir.program import Program, all_ops
from passes.partition.even_results import in_whole_axes
from spmdc.frontends.jax.annotations import is_importing
from spmdc.frontends.jax.shardings import MeshLike, named_sharding, with_devices
from spmdc.frontends.stablehlo.ops.host import INSPECTION


def lowered_inspection(context: Any, value: Any, callback: Callable[[Any], None]) -> bool:
    """Lowers the call in a function that is being imported. Returns False to leave other calls to JAX."""
    if not is_importing():
        return False
    functions = context.module_context.host_callbacks
    call = stablehlo.CustomCallOp([], [value], INSPECTION, has_side_effect=True)
    index = mlir.IntegerAttr.get(mlir.IntegerType.get_signless(64), len(functions))
    call.operation.attributes["mhlo.backend_config"] = mlir.DictAttr.get({"index": index})
    functions.append(callback)
    return True


def tell_inspections(propagated: Program, mesh: MeshLike) -> None:
    """Calls each callback with the sharding of its value, in whole axes of the caller's mesh."""
    told = [op for op in all_ops(propagated) if op.name == "inspect"]
    if not told:
        return
    given = with_devices(mesh)
    for op in told:
        value = op.operands[0]
        if value.sharding is not None:
            host_function(op.attrs)(named_sharding(in_whole_axes(value.sharding, value.shape), given))
