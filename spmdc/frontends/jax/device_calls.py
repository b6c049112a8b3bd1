"""Ops of JAX's that only some kinds of devices have, such as Pallas kernels: calls of JAX functions in the program.

Such an op is for arrays of its shapes, so every device that needs a result computes all of it; in a `jax.shard_map`,
the shapes are those of shards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax import lax
from jax.interpreters.mlir import aval_to_ir_type
from jaxlib.mlir import ir as mlir
from jaxlib.mlir.dialects import stablehlo

from lowering.jax.versions import bound_here, varying
from spmdc.frontends.stablehlo.ops.opaque import FUNCTION


def lowered_call(context: Any, primitive: Any, values: Sequence[Any], params: Mapping[str, Any]) -> Sequence[Any]:
    """The results of an op, as a custom call of a function that applies it."""
    functions = context.module_context.host_callbacks
    types = [aval_to_ir_type(context.module_context, aval) for aval in context.avals_out]
    call = stablehlo.CustomCallOp(types, list(values), FUNCTION)
    index = mlir.IntegerAttr.get(mlir.IntegerType.get_signless(64), len(functions))
    name = mlir.StringAttr.get(_name(primitive, params))
    call.operation.attributes["mhlo.backend_config"] = mlir.DictAttr.get({"index": index, "name": name})
    functions.append(_applied(primitive, params))
    found: Sequence[Any] = call.results
    return found


def _name(primitive: Any, params: Mapping[str, Any]) -> str:
    """The name of a kernel if it has one, otherwise of the op."""
    info = params.get("name") or getattr(params.get("name_and_src_info"), "name", None)
    return str(info or primitive.name)


def _applied(primitive: Any, params: Mapping[str, Any]) -> Callable[..., Sequence[Any]]:
    """The op as a function of arrays. Its results vary over the axes that any of the arrays varies over, whether or not
    the op itself says so."""

    def applied(*arrays: Any) -> Sequence[Any]:
        results = bound_here(primitive, arrays, params)
        axes = frozenset[Any]().union(*map(varying, arrays))
        return [_varying(x, axes - varying(x)) for x in results]

    return applied


def _varying(x: Any, axes: frozenset[Any]) -> Any:
    return lax.pcast(x, tuple(axes), to="varying") if axes else x
