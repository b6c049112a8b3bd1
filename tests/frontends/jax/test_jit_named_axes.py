"""Functions of spmdc.jit within what names axes, as `vmap`, `shard_map` and `pmap` do, against those of jax.jit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import spmdc
from lowering.jax import ensure_devices

JAX: Any = jax
LAX: Any = lax
P: Any = PartitionSpec
X = np.arange(32, dtype=np.float32).reshape(8, 4)
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def mesh() -> Mesh:
    return Mesh(np.array(ensure_devices(8)[:8]).reshape(4, 2), ("x", "y"))


def centred(v: Any) -> Any:
    return v - LAX.pmean(v, "b")


def counted(v: Any) -> Any:
    return v * LAX.axis_size("b")


def along_x(v: Any) -> Any:
    return v - LAX.pmean(v, "x") * LAX.axis_index("x")


def by_hand(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    mapped: Callable[..., Any] = JAX.shard_map(f, mesh=mesh(), in_specs=P("x"), out_specs=P("x"), **options)
    return mapped


def in_two_sizes(wrap: Wrap) -> Any:
    inner = wrap(counted)
    return [jax.jit(jax.vmap(inner, axis_name="b"))(X[:n]) for n in (8, 3)]


def summed(f: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda x: jnp.sum(f(x) ** 2)


CASES: dict[str, Callable[[Wrap], Any]] = {
    "vmap": lambda wrap: jax.vmap(wrap(centred), axis_name="b")(X),
    "vmap in jit": lambda wrap: jax.jit(jax.vmap(wrap(centred), axis_name="b"))(X),
    "vmap of a gradient": lambda wrap: jax.vmap(jax.grad(summed(wrap(centred))), axis_name="b")(X),
    "a gradient of vmap": lambda wrap: jax.grad(summed(jax.vmap(wrap(centred), axis_name="b")))(X),
    "sizes of axes": in_two_sizes,
    "vmap inside of the function": lambda wrap: wrap(lambda x: jax.vmap(wrap(centred), axis_name="b")(x))(X),
    "shard_map": lambda wrap: by_hand(wrap(along_x))(X),
    "shard_map that does not check": lambda wrap: by_hand(wrap(along_x), check_vma=False)(X),
    "shard_map of one axis": lambda wrap: jax.jit(by_hand(wrap(along_x), axis_names={"x"}))(X),
    "shard_map inside of the function": lambda wrap: wrap(lambda x: by_hand(wrap(along_x))(x))(X),
    "a gradient of shard_map": lambda wrap: jax.grad(summed(by_hand(wrap(along_x))))(X),
    "shapes in shard_map": lambda wrap: by_hand(lambda v: v + jax.eval_shape(wrap(along_x), v).shape[0])(X),
    "pmap": lambda wrap: JAX.pmap(wrap(centred), axis_name="b")(X),
}


@pytest.mark.parametrize("what", CASES)
def test_collectives_go_along_axes_that_are_named_outside(what: str) -> None:
    ours = CASES[what](lambda f: spmdc.jit(f, mesh=mesh()))
    theirs = CASES[what](jax.jit)
    for got, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_a_function_without_collectives_is_partitioned_under_vmap_with_a_name() -> None:
    inner = spmdc.jit(lambda v: jnp.cumsum(v), mesh=mesh(), in_shardings=P("x"))
    np.testing.assert_array_equal(jax.vmap(inner, axis_name="b")(X), np.cumsum(X, 1))
    (specialisation,) = inner.specialisations
    batched, _ = specialisation.part.batched(len(X), (0,), None, None)
    assert specialisation.part.batched.cache_info().misses == 1
    assert batched.partitioned.collectives()


def test_an_axis_that_nothing_names_is_reported_as_by_jax() -> None:
    with pytest.raises(NameError, match="unbound axis name: b"):
        spmdc.jit(centred, mesh=mesh())(X)


NAMED: dict[str, Callable[[Any], Any]] = {
    "constraints": lambda wrap: wrap(lambda v: LAX.with_sharding_constraint(v * 2, NamedSharding(mesh(), P("y")))),
    "shardings of arguments": lambda wrap: wrap(lambda v: v * 2, in_shardings=NamedSharding(mesh(), P("y"))),
    "shardings of results": lambda wrap: wrap(lambda v: v * 2, out_shardings=NamedSharding(mesh(), P("y"))),
}


@pytest.mark.parametrize("case", NAMED)
def test_vmap_around_a_function_splits_the_batch_over_the_axes_that_it_names(case: str) -> None:
    for wrap in (jax.jit, functools.partial(spmdc.jit, mesh=mesh())):
        found = jax.vmap(NAMED[case](wrap), spmd_axis_name="x")(X)
        assert found.sharding.spec == P("x", "y")
        np.testing.assert_array_equal(found, X * 2)


@pytest.mark.parametrize("kinds", [(AxisType.Explicit, AxisType.Explicit), (AxisType.Explicit, AxisType.Auto)])
def test_types_that_leave_a_batch_whole_are_kept_by_a_vmap_that_names_axes(kinds: tuple[AxisType, AxisType]) -> None:
    typed = jax.make_mesh((4, 2), ("x", "y"), axis_types=kinds)

    def total(wrap: Wrap, batch: Any) -> Any:
        return jax.vmap(wrap(lambda v: (v * v).sum()), spmd_axis_name="x")(batch).sum()

    with JAX.set_mesh(typed):
        batch = jax.device_put(X, NamedSharding(typed, P()))
        for wrap in (jax.jit, functools.partial(spmdc.jit, mesh=typed)):
            gradient: Any = jax.grad(functools.partial(total, wrap))(batch)
            assert gradient.sharding.spec == P(None, None)
            np.testing.assert_array_equal(gradient, 2 * X)
