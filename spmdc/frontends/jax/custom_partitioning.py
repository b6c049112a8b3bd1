"""Functions with `jax.custom_partitioning`: their rules specify how they are split, and each device calls them on a
part.

JAX calls a function's `partition` to get what a device computes. Here it is called once, with nothing split: the result
then takes whole arrays and does not communicate. It is applied to parts along the dims that the rule declares
independent. If a rule has a reduction factor, `partition` is also called with that split over one axis. The function
that it returns then reduces its results over that axis itself, by psum, pmax or pmin: without this last step its
results are partial, and the partitioner reduces them. Functions that do otherwise, those without a rule, and those that
require a split of their own, are imported as what they compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Var, jaxpr_as_fun
from jax.interpreters.mlir import aval_to_ir_type
from jax.sharding import NamedSharding, Sharding
from jaxlib.mlir.dialects import sdy

from ir.mesh import Mesh
from lowering.jax.running import usual_devices
from lowering.jax.untyped import spec_of, struct_of
from lowering.jax.versions import abstract_mesh, custom_partitioning_name, custom_partitioning_rule, written_in_place
from spmdc.frontends.jax.annotations import current_mesh
from spmdc.frontends.jax.device_calls import call_of_python
from spmdc.frontends.stablehlo.attributes import cast
from spmdc.frontends.stablehlo.ops.opaque import CUSTOM_PARTITIONING


def lowered_call(context: Any, values: Sequence[Any], params: Mapping[str, Any]) -> Sequence[Any] | None:
    """The results of a call in a function that is being imported; None leaves the call to JAX."""
    own = current_mesh()
    if own is None:
        return None
    found = _called(own, context, values, params)
    return written_in_place(context, values, params) if found is None else found


def _called(own: Mesh, context: Any, values: Sequence[Any], params: Mapping[str, Any]) -> Sequence[Any] | None:
    """The results of a call that is kept as a call; None if its rule does not specify enough."""
    avals = (*context.avals_in, *params["call"].out_avals)
    if params["sharding_rule"] is None or any(_is_of_keys(aval) for aval in avals):
        return None
    mesh = _mesh(own)
    types = [value.type for value in values]
    results = [aval_to_ir_type(context.module_context, aval) for aval in params["call"].out_avals]
    rule = cast(sdy.OpShardingRuleAttr, custom_partitioning_rule(params, mesh, types, results))
    kind, function = "", _of_arrays(mesh, context.avals_in, params)
    if rule.reduction_factors:
        kind, function = _of_parts(mesh, rule, context.avals_in, params) or ("", None)
    if function is None:
        return None
    name = custom_partitioning_name(params)
    call = call_of_python(context, CUSTOM_PARTITIONING, function, results, values, name=name, reduction=kind)
    call.operation.attributes["sdy.sharding_rule"] = rule
    found: Sequence[Any] = call.results
    return found


def _mesh(own: Mesh) -> Any:
    """JAX's mesh, with devices if there are enough, because a function may use them."""
    devices = usual_devices(own.size)
    if len(devices) < own.size:
        return abstract_mesh(own.shape, own.names)
    return jax.sharding.Mesh(np.array(devices).reshape(own.shape), own.names)


def _is_of_keys(aval: Any) -> bool:
    """Whether these are random keys, which are words in a program, but not in a function."""
    return bool(jax.numpy.issubdtype(aval.dtype, jax.dtypes.extended))


def _of_parts(
    mesh: Any, rule: sdy.OpShardingRuleAttr, operands: Sequence[Any], params: Mapping[str, Any]
) -> tuple[str, Callable[..., Sequence[Any]]] | None:
    """The kind of the reduction that is pending for the results if the reduction factor is split, and the function that
    a device computes before it; None if the function does more than reduce its results, or has several factors."""
    if len(rule.reduction_factors) != 1:
        return None
    factor = rule.reduction_factors[0]
    tensors = [sdy.TensorMappingAttr(t).dim_mappings for t in rule.operand_mappings]
    at = [[list(sdy.DimMappingAttr(d).factor_indices) == [factor] for d in dims] for dims in tensors]
    size = rule.factor_sizes[factor]
    axis = next((a for a, n in zip(mesh.axis_names, mesh.axis_sizes, strict=True) if n > 1 and size % n == 0), None)
    if axis is None:
        return None
    split = [tuple(axis if reduced else None for reduced in dims) for dims in at]
    function = _of_arrays(mesh, operands, params, split)
    if function is None:
        return None
    return _before_reduction(
        function, dict(mesh.shape), axis, [_part(x, s, mesh) for x, s in zip(operands, split, strict=True)]
    )


def _part(aval: Any, spec: Sequence[str | None], mesh: Any) -> Any:
    return struct_of([n // mesh.shape[a] if a else n for n, a in zip(aval.shape, spec, strict=True)], aval.dtype)


_REDUCTIONS = {"psum": "sum", "pmax": "max", "pmin": "min"}


def _before_reduction(
    function: Callable[..., Sequence[Any]], sizes: Mapping[str, int], axis: str, parts: Sequence[Any]
) -> tuple[str, Callable[..., Sequence[Any]]] | None:
    """The reduction over the axis that the function applies last, to all of its results, and the function without it;
    None if it has another reduction, or uses axes in other ways."""

    def split(*arrays: Any) -> tuple[Any, list[Any], list[Any], list[Any]]:
        """The function as a jaxpr, its last reductions, their operands, and all other ops."""
        closed: Any = jax.make_jaxpr(function, axis_env=list(sizes.items()))(*arrays)
        makers = {v: (op, op.invars[i]) for op in closed.jaxpr.eqns for i, v in enumerate(op.outvars)}
        last = [makers[v] for v in closed.jaxpr.outvars if isinstance(v, Var) and v in makers]
        reductions = {id(op) for op, _ in last if op.params.get("axes") == (axis,) and op.primitive.name in _REDUCTIONS}
        others = [op for op in closed.jaxpr.eqns if id(op) not in reductions]
        return closed, [op for op, _ in last if id(op) in reductions], [v for _, v in last], others

    def before(*arrays: Any) -> Sequence[Any]:
        closed, _, values, others = split(*arrays)
        jaxpr = closed.jaxpr.replace(eqns=others, outvars=values, effects=frozenset())
        found: Sequence[Any] = jaxpr_as_fun(ClosedJaxpr(jaxpr, closed.consts))(*arrays)
        return found

    closed, reductions, values, others = split(*parts)
    kinds = {_REDUCTIONS[op.primitive.name] for op in reductions}
    reduced = {v for op in reductions for v in op.outvars}
    used = {v for op in others for v in op.invars if isinstance(v, Var)} | {v for v in values if isinstance(v, Var)}
    if (
        len(reductions) < len(closed.jaxpr.outvars)
        or len(kinds) != 1
        or reduced & used
        or any(op.effects for op in others)
    ):
        return None
    return str(*kinds), before


def _splits(sharding: NamedSharding, dims: Sequence[str | None]) -> bool:
    """Whether the sharding splits exactly these dims, each over the given axis."""
    axes: list[Any] = list(sharding.spec)
    axes = [a[0] if isinstance(a, tuple) and len(a) == 1 else a or None for a in axes]
    length = max(len(axes), len(dims))
    return [*axes, *[None] * (length - len(axes))] == [*dims, *[None] * (length - len(dims))]


def _of_arrays(
    mesh: Any, operands: Sequence[Any], params: Mapping[str, Any], split: Sequence[Sequence[str | None]] | None = None
) -> Callable[..., Sequence[Any]] | None:
    """The function of arrays that a device computes if the operands have this split, by default none, and the results
    have none; None if the function requires another split."""

    def placed(aval: Any, spec: Sequence[str | None]) -> Any:
        return struct_of(aval.shape, aval.dtype, sharding=NamedSharding(mesh, spec_of(*spec)))

    def whole(aval: Any) -> Any:
        return placed(aval, [None] * len(aval.shape))

    in_tree, out_tree = params["in_tree"], params["out_tree"]
    made = list(map(whole, params["call"].out_avals))
    given = list(map(whole, operands)) if split is None else list(map(placed, operands, split))
    _, function, *shardings = params["partition"](
        *params["static_args"], mesh, in_tree.unflatten(given), out_tree.unflatten(made)
    )
    said = jax.tree.leaves(shardings, is_leaf=lambda x: isinstance(x, Sharding))
    wanted: list[Sequence[str | None]] = [*[()] * len(made), *(split or [()] * len(given))]
    if split is not None and len(said) != len(wanted):
        return None
    if not all(isinstance(s, NamedSharding) and _splits(s, w) for s, w in zip(said, wanted, strict=False)):
        return None

    def of_arrays(*arrays: Any) -> Sequence[Any]:
        found: Sequence[Any] = jax.tree.leaves(function(*in_tree.unflatten(arrays)))
        return found

    return of_arrays
