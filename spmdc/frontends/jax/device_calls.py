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
    types = [aval_to_ir_type(context.module_context, aval) for aval in context.avals_out]
    applied = _applied(primitive, params)
    found: Sequence[Any] = call_of_python(
        context, FUNCTION, applied, types, values, name=_name(primitive, params)
    ).results
    return found


def call_of_python(
    context: Any, target: str, function: Callable[..., Any], types: Sequence[Any], values: Sequence[Any], **words: str
) -> Any:
    """A custom call of a Python function, with results of these types and these words about it. The importer finds the
    function among JAX's callbacks, by its number."""
    functions = context.module_context.host_callbacks
    call = stablehlo.CustomCallOp(types, list(values), target)
    index = mlir.IntegerAttr.get(mlir.IntegerType.get_signless(64), len(functions))
    config = {name: mlir.StringAttr.get(word) for name, word in words.items()}
    call.operation.attributes["mhlo.backend_config"] = mlir.DictAttr.get({"index": index, **config})
    functions.append(function)
    return call


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
