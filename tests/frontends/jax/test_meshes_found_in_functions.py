"""`spmdc.jit` where nothing names a mesh but the function itself, and where there is none at all."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import spmdc
from ir.diagnostics import Diagnostic, SpmdcError
from lowering.jax import ensure_devices

P: Any = PartitionSpec
constrain: Any = jax.lax.with_sharding_constraint
shard_map: Any = jax.shard_map
A = np.arange(64, dtype=np.float32).reshape(8, 8)

DEVICES = np.array(ensure_devices(8)[:8])
MESH = Mesh(DEVICES.reshape(4, 2), ("x", "y"))
BACKWARDS = Mesh(DEVICES[::-1].reshape(4, 2), ("x", "y"))
EXPLICIT = Mesh(DEVICES.reshape(4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)


def rows(mesh: Mesh) -> Any:
    return NamedSharding(mesh, P("x"))


def problem(call: Callable[[], Any]) -> Diagnostic:
    with pytest.raises(SpmdcError) as caught:
        call()
    (found,) = caught.value.diagnostics
    return found


@contextmanager
def legacy(mesh: Mesh) -> Iterator[None]:
    """JAX's context `with mesh:`, without its warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        enter: Any = mesh.__enter__
        enter()
    try:
        yield
    finally:
        leave: Any = mesh.__exit__
        leave(None, None, None)


FUNCTIONS: dict[str, Callable[[Any, Mesh], Any]] = {
    "constraint": lambda a, mesh: constrain(a * 2, rows(mesh)),
    "shard_map": lambda a, mesh: shard_map(lambda a: a * 2, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(a),
    "annotation": lambda a, mesh: spmdc.shard(a * 2, rows(mesh)),
    "in a loop": lambda a, mesh: jax.lax.fori_loop(0, 1, lambda _, c: constrain(c * 2, rows(mesh)), a),
    "in a branch": lambda a, mesh: jax.lax.cond(a[0, 0] < 1, lambda: constrain(a * 2, rows(mesh)), lambda: a),
    "inner jit": lambda a, mesh: jax.jit(lambda a: a * 2, out_shardings=rows(mesh))(a),
    "inner spmdc.jit": lambda a, mesh: spmdc.jit(lambda a: a * 2, mesh=mesh, out_shardings=P("x"))(a),
}


@pytest.mark.parametrize("mesh", [MESH, BACKWARDS], ids=["forwards", "backwards"])
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_the_mesh_is_that_which_the_code_of_the_function_uses(function: Callable[[Any, Mesh], Any], mesh: Mesh) -> None:
    jitted = spmdc.jit(lambda a: function(a, mesh))
    for a in (A, jnp.asarray(A)):
        result = jitted(a)
        assert result.sharding.is_equivalent_to(rows(mesh), 2)
        np.testing.assert_array_equal(result, A * 2)
    assert jitted.partitioned(A).program.main.results[0].type.shape == (2, 8)


def test_a_function_without_arguments_makes_arrays_on_the_mesh_that_it_uses() -> None:
    result = spmdc.jit(lambda: {"w": constrain(jnp.ones((8, 4)), rows(MESH))})()
    assert result["w"].sharding == rows(MESH)


@pytest.mark.parametrize("mesh", [MESH, EXPLICIT], ids=["auto", "explicit"])
@pytest.mark.parametrize("inside", [False, True], ids=["itself", "in an inner jit"])
def test_the_mesh_is_that_of_an_array_that_the_function_closes_over(mesh: Mesh, inside: bool) -> None:
    weights = jax.device_put(A, rows(mesh))
    function: Any = lambda a: jnp.sin(a) @ weights  # noqa: E731
    result = spmdc.jit(jax.jit(function) if inside else function)(A)
    assert result.sharding.mesh == mesh
    np.testing.assert_allclose(result, np.sin(A) @ A, rtol=1e-5)


def test_a_mesh_that_the_function_uses_gives_meaning_to_partition_specs_in_the_options() -> None:
    jitted = spmdc.jit(lambda a: constrain(a * 2, rows(MESH)), in_shardings=P("x"))
    assert jitted.partitioned(A).program.main.params[0].shape == (2, 8)


def test_a_transformed_function_is_on_the_mesh_that_it_uses() -> None:
    jitted = spmdc.jit(lambda a: jnp.sum(constrain(jnp.sin(a), rows(MESH))))
    result = jax.grad(jitted)(A)
    assert result.sharding.device_set == set(DEVICES)
    np.testing.assert_allclose(result, np.cos(A), rtol=1e-5)


def test_a_function_that_jax_traces_is_on_the_mesh_of_its_arguments() -> None:
    """Types have the mesh even where they have no shardings."""
    a = jax.device_put(A, rows(MESH))
    result = jax.grad(spmdc.jit(lambda a: jnp.sum(jnp.sin(a))))(a)
    assert result.sharding.device_set == set(DEVICES)
    np.testing.assert_allclose(result, np.cos(A), rtol=1e-5)


def test_a_program_as_a_function_of_jax_brings_its_mesh() -> None:
    program = spmdc.parse("mesh (x=4)\n\ndef main(a: f32[8@x, 8]) -> (b: f32[8@x, 8]) {\n  return a + a\n}\n")
    result = spmdc.jit(lambda a: spmdc.as_jax(program)(a))(A)
    assert result.sharding.spec == P("x")
    np.testing.assert_array_equal(result, A * 2)


def test_the_mesh_may_come_from_the_legacy_context() -> None:
    functions: list[Any] = [lambda a: constrain(a * 2, P("x")), lambda a: spmdc.split(a * 2, 0, "x")]
    for function in functions:
        jitted = spmdc.jit(function)
        with legacy(MESH):
            assert jitted(A).sharding == rows(MESH)
        assert problem(functools.partial(jitted, A)).code == "E306"
    with legacy(MESH):
        assert spmdc.jit(lambda a: a * 2, in_shardings=P("x"))(A).sharding == rows(MESH)


def test_without_a_mesh_a_function_runs_on_one_device_as_under_jax() -> None:
    function: Any = lambda a, n, b=1: {"r": jnp.tanh(a) * n + b}  # noqa: E731
    jitted, expected = spmdc.jit(function, static_argnums=1), jax.jit(function, static_argnums=1)
    third = jax.device_put(A, DEVICES[3])
    for a in (A, jnp.asarray(A), third):
        ours, theirs = jitted(a, 2, b=3)["r"], expected(a, 2, b=3)["r"]
        assert (ours.sharding, ours.committed) == (theirs.sharding, theirs.committed)
        np.testing.assert_array_equal(ours, theirs)
    assert jitted._cache_size() == 3
    assert jitted.eval_shape(A, 2)["r"].shape == (8, 8)
    np.testing.assert_array_equal(jitted.lower(A, 2).compile()(A)["r"], expected(A, 2)["r"])
    np.testing.assert_allclose(jax.grad(lambda a: jitted(a, 2)["r"].sum())(A), 2 - 2 * np.tanh(A) ** 2, atol=1e-5)
    np.testing.assert_array_equal(jax.jit(lambda a: jitted(a, 2)["r"])(A), expected(A, 2)["r"])


def test_results_of_one_device_go_along_with_arrays_on_a_mesh() -> None:
    made = spmdc.jit(lambda key: jax.random.normal(key, (8, 8)))(jax.random.key(0))
    result = spmdc.jit(lambda a, b: a + b)(made, jax.device_put(A, rows(MESH)))
    assert result.sharding.mesh == MESH


def test_without_a_mesh_the_other_options_apply() -> None:
    where = SingleDeviceSharding(DEVICES[2])
    assert spmdc.jit(lambda a: a * 2, in_shardings=where)(A).sharding == where
    assert spmdc.jit(lambda a: a * 2, out_shardings=where)(A).sharding == where
    a = jnp.asarray(A) + 0
    spmdc.jit(lambda a: a * 2, donate_argnums=0)(a)
    assert a.is_deleted()
    reference = jax.new_ref(jnp.zeros(3))

    @spmdc.jit
    def count(by: Any) -> None:
        reference[...] += by

    count(1.0)
    count(2.0)
    np.testing.assert_array_equal(reference[...], [3, 3, 3])


@pytest.mark.parametrize(
    "call",
    [
        lambda: spmdc.jit(lambda a: constrain(a, P("x")))(A),
        lambda: spmdc.jit(lambda a: shard_map(lambda a: a, in_specs=P("x"), out_specs=P("x"))(a))(A),
        lambda: spmdc.jit(lambda a: spmdc.split(a, 0, "x"))(A),
        lambda: spmdc.jit(lambda a: a, in_shardings=P("x"))(A),
        lambda: spmdc.jit(lambda a: a, out_shardings=(P("x"),))(A),
        lambda: spmdc.jit(lambda a: a, in_shardings="{devices=[8,1]<=[8]}")(A),
        lambda: spmdc.jit(lambda a: a).partitioned(A),
    ],
    ids=["constraint", "shard_map", "split", "in_shardings", "out_shardings", "text", "partitioned"],
)
def test_axes_without_a_mesh_are_an_error_that_says_where_to_name_one(call: Callable[[], Any]) -> None:
    found = problem(call)
    assert found.code == "E306"
    assert found.help is not None
    assert all(way in found.help for way in ("jax.set_mesh(mesh)", "mesh=mesh", "in_shardings", "arguments"))


def test_shardings_over_several_devices_but_no_mesh_are_an_error() -> None:
    given = _without_mesh(rows(MESH))
    a = jax.device_put(A, given)
    calls: list[Callable[[], Any]] = [
        lambda: spmdc.jit(lambda a: a, in_shardings=given)(A),
        lambda: spmdc.jit(lambda a: a)(a),
        lambda: spmdc.jit(lambda b: b + a)(A),
        lambda: spmdc.jit(lambda b: constrain(b, given))(A),
    ]
    for found in map(problem, calls):
        assert found.code == "E306"
        assert "GSPMDSharding" in found.message


def _without_mesh(sharding: Any) -> Any:
    """The same sharding as JAX's `GSPMDSharding`, which is undocumented, but which some results have."""
    kind: Any = importlib.import_module("jax._src.sharding_impls").GSPMDSharding
    return kind(tuple(sharding.mesh.devices.flat), sharding._to_xla_hlo_sharding(2))


@pytest.mark.parametrize("given", ["x", 3, "P(x"])
def test_what_is_no_sharding_is_reported_as_such_without_a_mesh(given: Any) -> None:
    found = problem(lambda: spmdc.jit(lambda a: a, in_shardings=(given,))(A))
    assert found.code == "E309"
    assert f"in_shardings has {given!r}, which is no PartitionSpec, no NamedSharding" in found.message
