"""Calls of partitioned functions, as a JAX primitive.

To `jax.jit`, `jax.grad`, `jax.jvp`, `jax.vmap` and their combinations, a call is one op, and so is each result of such
a transformation (`partitioned_call`), which is partitioned as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from lowering.jax.untyped import struct_of, type_of
from lowering.jax.versions import InvalidNumberError, register_error_check, register_series_rule, with_own_order
from spmdc.frontends.jax.annotations import is_importing
from spmdc.frontends.jax.execution import NO_MESH, where_invalid
from spmdc.frontends.jax.partitioned_call import CALL, PartitionedCall

_batching: Any = batching
_transformations: Any = ad


def _run(*leaves: Any, part: PartitionedCall, devices: Any) -> list[Any]:
    execution = part.execution
    try:
        return list(execution.run(leaves, execution.misplaced(leaves)))
    except InvalidNumberError as invalid:
        raise where_invalid(invalid, part.function, leaves, {}) from None


def _types(*leaves: Any, part: PartitionedCall, devices: Any) -> tuple[list[Any], frozenset[Any]]:
    return [type_of(a) for a in part.out_avals], part.effects


def _pushed_forward(
    primals: Sequence[Any], tangents: Sequence[Any], *, part: PartitionedCall, devices: Any
) -> tuple[list[Any], list[Any]]:
    moving = tuple(
        i for i, (t, a) in enumerate(zip(tangents, part.avals, strict=True))
        if type(t) is not _transformations.Zero and jnp.issubdtype(a.dtype, jnp.inexact)
    )  # fmt: skip
    if not moving:
        results = part(*primals)
        return list(results), [_transformations.Zero(jax.typeof(r).to_tangent_aval()) for r in results]
    first, second = part.linearised(moving)
    found = first(*primals)
    results, kept = found[: len(part.out_avals)], found[len(part.out_avals) :]
    pushed = dict(zip(part.floats, second(*kept, *(tangents[i] for i in moving)), strict=True))
    return list(results), [
        pushed.get(i, _transformations.Zero(jax.typeof(r).to_tangent_aval())) for i, r in enumerate(results)
    ]


def _pulled_back(cotangents: Sequence[Any], *leaves: Any, part: PartitionedCall, devices: Any) -> list[Any]:
    linear = tuple(i for i, x in enumerate(leaves) if _transformations.is_undefined_primal(x))
    used = tuple(i for i, c in enumerate(cotangents) if type(c) is not _transformations.Zero)
    if not used:
        return [_transformations.Zero(x.aval) if i in linear else None for i, x in enumerate(leaves)]
    fixed = [x for i, x in enumerate(leaves) if i not in linear]
    found = dict(zip(linear, part.transposed(linear, used)(*fixed, *(cotangents[i] for i in used)), strict=True))
    return [found.get(i) for i in range(len(leaves))]


def _of_batches(
    axis: Any, leaves: Sequence[Any], dims: Sequence[int | None], *, part: PartitionedCall, devices: Any
) -> tuple[list[Any], list[int | None]]:
    places = tuple(None if d is None else int(d) for d in dims)
    many = [(jax.typeof(x), d) for x, d in zip(leaves, places, strict=True) if d is not None]
    if not many:
        return list(CALL.bind(*leaves, part=part, devices=devices)), [None] * len(part.out_avals)
    batched, out_dims = part.batched(axis.size, places, part.axes_of_batch(many), axis.spmd_name)
    return list(batched(*leaves)), list(out_dims)


def _in_series(
    leaves: Sequence[Any], series: Sequence[Sequence[Any]], *, part: PartitionedCall, devices: Any
) -> tuple[list[Any], list[list[Any]]]:
    order = len(series[0])
    found = part.expanded(order)(*leaves, *(term for each in series for term in each))
    results, terms = found[: len(part.out_avals)], iter(found[len(part.out_avals) :])
    return list(results), [[next(terms) for _ in range(order)] for _ in results]


def _carrying_errors(
    with_errors: Callable[..., Any], error: Any, *leaves: Any, part: PartitionedCall, devices: Any
) -> Any:
    errors, tree = jax.tree.flatten(error)
    checked, out_tree = part.checked(with_errors, tree, list(map(type_of, errors)))
    return jax.tree.unflatten(out_tree, checked(*errors, *leaves))


def _lowered(*leaves: Any, part: PartitionedCall, devices: Any) -> list[Any]:
    if is_importing():
        return list(part.inlined(*leaves))
    if part.is_of_scalars:
        return list(part.function(*leaves))
    with jax.sharding.use_abstract_mesh(NO_MESH):
        return list(part.executable(*leaves))


def _lowered_untyped(context: Any, *operands: Any, **params: Any) -> Any:
    """The types of the program's own values name no axes of the enclosing mesh."""
    untyped = [[type_of(struct_of(a.shape, a.dtype)) for a in avals] for avals in (context.avals_in, context.avals_out)]
    context = context.replace(avals_in=untyped[0], avals_out=untyped[1])
    is_in_place = is_importing() or params["part"].is_of_scalars
    lower = mlir.lower_fun(_lowered, multiple_results=True)
    with params["part"].inlining():
        return lower(with_own_order(context) if is_in_place else context, *operands, **params)


def register_rules() -> None:
    """Tells JAX what calls compute, and what its transformations make of them."""
    CALL.def_impl(_run)
    CALL.def_effectful_abstract_eval(_types)
    _transformations.primitive_jvps[CALL] = _pushed_forward
    _transformations.primitive_transposes[CALL] = _pulled_back
    _batching.fancy_primitive_batchers[CALL] = _of_batches
    mlir.register_lowering(CALL, _lowered_untyped)
    register_error_check(CALL, _carrying_errors)
    register_series_rule(CALL, _in_series)
