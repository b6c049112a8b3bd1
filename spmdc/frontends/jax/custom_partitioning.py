"""Functions with `jax.custom_partitioning`: their rules say how they are split, and each device calls them for a part.

JAX asks a function's `partition` what a device is to compute. Here it is asked once, with nothing split: what it gives
then takes whole arrays and sends nothing. That is applied to parts along the dims that the rule says are independent.
Where a rule has reduction factors, only the function knows how its parts are to be reduced. Such functions, and those
without a rule or that insist on being split in a way of their own, are imported as what they compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters.mlir import aval_to_ir_type
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from jaxlib.mlir import ir as mlir
from jaxlib.mlir.dialects import sdy, stablehlo

from ir.mesh import Mesh
from lowering.jax.versions import (
    abstract_mesh,
    custom_partitioning_name,
    custom_partitioning_rule,
    written_in_place,
)
from spmdc.frontends.jax.annotations import current_mesh
from spmdc.frontends.stablehlo.attributes import cast
from spmdc.frontends.stablehlo.ops.opaque import CUSTOM_PARTITIONING


def lowered_call(context: Any, values: Sequence[Any], params: Mapping[str, Any]) -> Sequence[Any] | None:
    """The results of a call in a function that is imported; None leaves others to JAX."""
    own = current_mesh()
    if own is None:
        return None
    found = _called(own, context, values, params)
    return written_in_place(context, values, params) if found is None else found


def _called(own: Mesh, context: Any, values: Sequence[Any], params: Mapping[str, Any]) -> Sequence[Any] | None:
    """The results of a call that stays one; None if its rule does not say enough."""
    avals = (*context.avals_in, *params["call"].out_avals)
    if params["sharding_rule"] is None or any(_is_of_keys(aval) for aval in avals):
        return None
    mesh = _mesh(own)
    types = [value.type for value in values]
    results = [aval_to_ir_type(context.module_context, aval) for aval in params["call"].out_avals]
    rule = cast(sdy.OpShardingRuleAttr, custom_partitioning_rule(params, mesh, types, results))
    function = None if rule.reduction_factors else _of_whole_arrays(mesh, context.avals_in, params)
    if function is None:
        return None
    callbacks = context.module_context.host_callbacks
    call = stablehlo.CustomCallOp(results, list(values), CUSTOM_PARTITIONING)
    index = mlir.IntegerAttr.get(mlir.IntegerType.get_signless(64), len(callbacks))
    name = mlir.StringAttr.get(custom_partitioning_name(params))
    call.operation.attributes["mhlo.backend_config"] = mlir.DictAttr.get({"index": index, "name": name})
    call.operation.attributes["sdy.sharding_rule"] = rule
    callbacks.append(function)
    return call.results


def _mesh(own: Mesh) -> Any:
    """JAX's mesh, of devices where there are as many, for a function may ask for them."""
    devices = jax.devices()
    if len(devices) < own.size:
        return abstract_mesh(own.shape, own.names)
    return jax.sharding.Mesh(np.array(devices[: own.size]).reshape(own.shape), own.names)


def _is_of_keys(aval: Any) -> bool:
    """Whether these are keys of random numbers, which are words in a program, and not in a function."""
    return bool(jax.numpy.issubdtype(aval.dtype, jax.dtypes.extended))


def _of_whole_arrays(
    mesh: Any, operands: Sequence[Any], params: Mapping[str, Any]
) -> Callable[..., Sequence[Any]] | None:
    """What a device computes where nothing is split, as a function of arrays; None if something has to be."""

    def whole(aval: Any) -> Any:
        struct: Any = jax.ShapeDtypeStruct
        spec: Any = PartitionSpec
        return struct(aval.shape, aval.dtype, sharding=NamedSharding(mesh, spec(*[None] * len(aval.shape))))

    in_tree, out_tree = params["in_tree"], params["out_tree"]
    given = in_tree.unflatten(list(map(whole, operands)))
    made = out_tree.unflatten(list(map(whole, params["call"].out_avals)))
    _, function, *shardings = params["partition"](*params["static_args"], mesh, given, made)
    leaves = jax.tree.leaves(shardings, is_leaf=lambda x: isinstance(x, Sharding))
    if not all(isinstance(s, Sharding) and s.is_fully_replicated for s in leaves):
        return None

    def of_arrays(*arrays: Any) -> Sequence[Any]:
        found: Sequence[Any] = jax.tree.leaves(function(*in_tree.unflatten(arrays)))
        return found

    return of_arrays
