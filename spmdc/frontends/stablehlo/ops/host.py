"""Host callbacks, as JAX lowers debug_callback, pure_callback and io_callback, and callbacks that get the sharding of a
value."""

from __future__ import annotations

from jaxlib.mlir import ir as mlir

from spmdc.frontends.stablehlo.attributes import text_of
from spmdc.frontends.stablehlo.effects import TARGETS
from spmdc.frontends.stablehlo.locations import name_of
from spmdc.frontends.stablehlo.names import identifier, name_of_path
from spmdc.frontends.stablehlo.ops.opaque import called
from spmdc.frontends.stablehlo.scope import Bound, Scope, converts

INSPECTION = "spmdc.inspect"
"""The target of a call without results: the function with its number is called with the sharding of the operand."""


@converts(f"custom_call @{INSPECTION}")
def _inspect(op: mlir.Operation, scope: Scope) -> list[Bound]:
    """Raises SpmdcError (E704) in a module that is read from text, or in a function of scalars."""
    function = scope.module.effects.function(op, "inspect")
    if function is None or scope.token is None:
        raise scope.refuse(op, "nobody can be told how the value is sharded here", code="E704",
                           help="leave out jax.debug.inspect_array_sharding")  # fmt: skip
    (operand,) = scope.operands(op)
    scope.token = scope.builder.op("inspect", operand, scope.token, function=function)
    return []


@converts(*(f"custom_call @{target}" for target in sorted(TARGETS)))
def _callback(op: mlir.Operation, scope: Scope) -> list[Bound]:
    """The function is called once, except along axes that are manual here, where each device calls it. Every device
    calls one that takes the parts of its operands."""
    target = text_of(op.attributes["call_target_name"])
    name = identifier(name_of_path(name_of(op.location), "callback").rpartition("/")[2], "callback")
    function = scope.module.effects.function(op, name)
    if function is None:
        message = f"@{target} calls a Python function, which a module that is read from text does not hold"
        help = "import the function that was lowered to this: spmdc.from_jax, spmdc.jit"
        raise scope.refuse(op, message, code="E704", help=help)
    split = "partitioned" in target
    meshes = scope.module.shardings.meshes
    axes = meshes[0].whole_axes() if meshes else ()
    each = axes if split else tuple(axis for axis in axes if axis.name in scope.manual)
    types = tuple(scope.result_types(op))
    return called(op, scope, "callback", {"function": function, "types": types, "each": each, "split": split})
