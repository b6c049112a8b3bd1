"""shard_map: what is partitioned by hand becomes a manual region, and computes what it does in JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import spmdc
from ir.program import all_ops

lax: Any = jax.lax
P: Any = jax.sharding.PartitionSpec
X = np.random.default_rng(0).integers(-3, 4, (16, 8)).astype("f4")


@pytest.fixture
def mesh(devices: list[jax.Device]) -> jax.sharding.Mesh:
    auto = (jax.sharding.AxisType.Auto,) * 2
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=auto, devices=devices)


def ring(a: Any) -> Any:
    return lax.ppermute(a, "x", [(j, (j + 1) % 4) for j in range(4)])


def part_of_a_ring(a: Any) -> Any:
    return lax.ppermute(a, "x", [(0, 1), (3, 0)])


def swapped_neighbours(a: Any) -> Any:
    return lax.ppermute(a, "x", [(0, 1), (1, 0), (2, 3), (3, 2)])


def along_both_axes(a: Any) -> Any:
    return lax.ppermute(a, ("x", "y"), [(j, (j + 3) % 8) for j in range(8)])


SPLIT = P("x", "y")
CASES: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
    "psum": (lambda a: lax.psum(a.sum(0), "x"), SPLIT, P("y")),
    "pmax_along_both": (lambda a: lax.pmax(a, ("x", "y")), SPLIT, P()),
    "pmean": (lambda a: lax.pmean(a, "y"), SPLIT, P("x")),
    "all_gather_tiled": (lambda a: lax.all_gather(a, "y", axis=1, tiled=True), SPLIT, P("x")),
    "all_gather_in_another_order": (lambda a: lax.all_gather(a, ("y", "x"), tiled=True), SPLIT, P()),
    "all_to_all": (lambda a: lax.all_to_all(a, "y", 0, 1, tiled=True), SPLIT, SPLIT),
    "psum_scatter": (lambda a: lax.psum_scatter(a, "y", scatter_dimension=0, tiled=True), SPLIT, P(("x", "y"))),
    "ring": (ring, SPLIT, SPLIT),
    "part_of_a_ring": (part_of_a_ring, SPLIT, SPLIT),
    "swapped_neighbours": (swapped_neighbours, SPLIT, SPLIT),
    "along_both_axes": (along_both_axes, SPLIT, SPLIT),
    "axis_index_of_one_axis": (lambda a: a[:1, :1] + lax.axis_index("x"), P("x"), P("x")),
    "axis_index_of_both": (lambda a: a + lax.axis_index(("x", "y")), SPLIT, SPLIT),
    "axis_index_in_a_function": (jax.jit(lambda a: a + lax.axis_index("y")), SPLIT, SPLIT),
    "in_a_loop": (lambda a: lax.fori_loop(0, 3, lambda i, c: ring(c) + i, a), SPLIT, SPLIT),
}


@pytest.mark.parametrize("name", CASES)
def test_a_function_of_shards_computes_what_it_does_in_jax(name: str, mesh: jax.sharding.Mesh) -> None:
    body, taken, given = CASES[name]
    function = jax.shard_map(body, mesh=mesh, in_specs=taken, out_specs=given, check_vma=False)
    program = spmdc.from_jax(function, X)
    assert any(op.name == "manual" for op in all_ops(program))
    expected = np.asarray(jax.jit(function)(X))
    np.testing.assert_array_equal(spmdc.evaluate(program, X)[0], expected)
    np.testing.assert_array_equal(spmdc.partition(program).simulate(X)[0], expected)


GROUPED: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "psum": (lax.psum, P("x"), P("x")),
    "pmax": (lax.pmax, P("x"), P("x")),
    "all_gather": (functools.partial(lax.all_gather, tiled=True), P("x"), P("x")),
    "psum_scatter": (functools.partial(lax.psum_scatter, tiled=True), P("x"), P("x")),
    "all_to_all": (functools.partial(lax.all_to_all, split_axis=1, concat_axis=0, tiled=True), P("x"), P("x")),
    "psum of other parts": (lax.psum, SPLIT, SPLIT),
}


@pytest.mark.parametrize("manual", [{"x", "y"}, {"x"}], ids=["all axes by hand", "one axis by hand"])
@pytest.mark.parametrize("name", GROUPED)
def test_groups_that_are_no_part_of_an_axis_differ_along_that_axis_alone(
    name: str, manual: set[str], mesh: jax.sharding.Mesh
) -> None:
    collective, taken, given = GROUPED[name]
    if manual == {"x"}:
        taken = given = P("x")
    function = jax.shard_map(
        lambda a: collective(a, "x", axis_index_groups=[[0, 3], [2, 1]]),
        mesh=mesh, in_specs=taken, out_specs=given, check_vma=False, axis_names=manual,
    )  # fmt: skip
    program = spmdc.from_jax(function, X, mesh=mesh)
    expected = np.asarray(jax.jit(function)(X))
    np.testing.assert_array_equal(spmdc.evaluate(program, X)[0], expected)
    partitioned = spmdc.partition(program)
    np.testing.assert_array_equal(partitioned.simulate(X)[0], expected)
    (gathered,) = (c for c in partitioned.collectives() if c.kind == "all_gather")
    assert gathered.axes == "x"


def test_axes_that_are_not_manual_stay_automatic(mesh: jax.sharding.Mesh) -> None:
    function = jax.shard_map(
        lambda a: lax.psum(a @ a.T, "x"), mesh=mesh, in_specs=P(None, "x"), out_specs=P(), axis_names={"x"}
    )
    program = spmdc.from_jax(function, X, mesh=mesh, in_shardings=P("y", "x"))
    partitioned = spmdc.partition(program)
    np.testing.assert_array_equal(partitioned.simulate(X)[0], X @ X.T)
    assert "all_reduce" in {c.kind for c in partitioned.collectives()}


def test_the_gradient_of_a_function_of_shards_is_imported(mesh: jax.sharding.Mesh) -> None:
    function: Any = jax.shard_map(lambda a: lax.psum(a * a, "x"), mesh=mesh, in_specs=SPLIT, out_specs=P(None, "y"))
    gradient = jax.grad(lambda a: (function(a) ** 2).sum())
    program = spmdc.from_jax(gradient, X)
    np.testing.assert_array_equal(spmdc.partition(program).simulate(X)[0], jax.jit(gradient)(X))


def test_a_result_said_to_be_replicated_that_is_not_is_refused(mesh: jax.sharding.Mesh) -> None:
    function = jax.shard_map(
        lambda a: a.sum() + lax.axis_index("x"), mesh=mesh, in_specs=SPLIT, out_specs=P(), check_vma=False
    )
    with pytest.raises(spmdc.SpmdcError, match="E407"):
        spmdc.from_jax(function, X)


def summed_product(a: Any, b: Any) -> Any:
    return lax.psum(a @ b, "x"), a + lax.axis_index("x")


def two_regions(mesh: jax.sharding.Mesh) -> Callable[[Any], Any]:
    """One region's result goes into the next, with ops between them and a result that passes the next by."""
    product: Any = jax.shard_map(
        summed_product, mesh=mesh, in_specs=(P("y", "x"), P("x", None)), out_specs=(P("y"), P("y", "x"))
    )

    def function(a: Any) -> Any:
        first, second = product(a, a.T * 2)
        return product(second, a.T)[0] + first

    return function


def one_of_two_axes(mesh: jax.sharding.Mesh) -> Callable[[Any], Any]:
    function: Any = jax.shard_map(
        lambda a: lax.psum(a @ a.T, "x"), mesh=mesh, in_specs=P(None, "x"), out_specs=P(), axis_names={"x"}
    )
    return lambda a: function(a)


@pytest.mark.parametrize("shardy", [True, False], ids=["shardy", "gspmd"])
@pytest.mark.parametrize("make", [two_regions, one_of_two_axes])
def test_hlo_says_manual_regions_by_custom_calls(
    make: Callable[[jax.sharding.Mesh], Callable[[Any], Any]], shardy: bool, mesh: jax.sharding.Mesh
) -> None:
    function = make(mesh)
    expected = np.asarray(jax.jit(function)(X))
    config: Any = jax.config
    config.update("jax_use_shardy_partitioner", shardy)
    try:
        module: Any = jax.jit(function).lower(X).compiler_ir("hlo")
    finally:
        config.update("jax_use_shardy_partitioner", True)
    program = spmdc.from_hlo(module.as_hlo_text())
    assert any(op.name == "manual" for op in all_ops(program))
    np.testing.assert_array_equal(spmdc.partition(program).simulate(X)[0], expected)
