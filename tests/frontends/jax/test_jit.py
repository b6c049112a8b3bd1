"""`spmdc.jit` in the place of `jax.jit`."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import spmdc
from ir.diagnostics import SpmdcError
from lowering.jax import ensure_devices

P: Any = PartitionSpec
_SIZES = {"x": 4, "y": 2}


def mlp(params: Any, x: Any) -> Any:
    for w, b in params:
        x = jnp.tanh(x @ w + b)
    return {"features": x, "loss": jnp.sum(x**2)}


def parameters(*widths: int) -> Any:
    """Weights and biases, drawn from small integers."""
    draw = np.random.default_rng(0)
    shapes = list(itertools.pairwise(widths))
    return [(draw.normal(size=s).astype(np.float32), draw.normal(size=s[1]).astype(np.float32)) for s in shapes]


def rows(*shape: int) -> Any:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def agree(got: Any, expected: Any, tolerance: float = 2e-5) -> None:
    """Both are trees of the same structure, with the same dtypes, shapes and, nearly, numbers."""
    structure: Any = jax.tree.structure
    assert structure(got) == structure(expected)
    for g, e in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert (g.shape, g.dtype) == (e.shape, e.dtype)
        np.testing.assert_allclose(g, e, rtol=tolerance, atol=tolerance)


_SPLIT = ([(P(None, "y"), P("y")), (P("y", None), None)], P("x"))


def test_results_are_those_of_jax_for_dims_that_the_mesh_does_not_divide() -> None:
    params, x = parameters(7, 16, 5), rows(9, 7)
    jitted = spmdc.jit(mlp, mesh=_SIZES, in_shardings=_SPLIT, out_shardings={"features": P("x"), "loss": P()})
    agree(jitted(params, x), jax.jit(mlp)(params, x))
    kinds = [c.kind for c in jitted.partitioned(params, x).collectives()]
    assert kinds == ["all_reduce", "all_gather", "all_reduce"]


def test_a_gradient_taken_outside_is_partitioned_as_a_whole() -> None:
    params, x = parameters(7, 16, 5), rows(9, 7)
    jitted = spmdc.jit(mlp, mesh=_SIZES, in_shardings=_SPLIT)
    got = jax.grad(lambda p, x: jitted(p, x)["loss"], argnums=(0, 1))(params, x)
    agree(got, jax.grad(lambda p, x: mlp(p, x)["loss"], argnums=(0, 1))(params, x))


def test_a_gradient_taken_inside() -> None:
    params, x = parameters(7, 16, 5), rows(9, 7)
    step = jax.value_and_grad(lambda p, x: mlp(p, x)["loss"])
    agree(spmdc.jit(step, mesh=_SIZES, in_shardings=_SPLIT)(params, x), step(params, x))


def test_a_gradient_of_a_gradient() -> None:
    jitted = spmdc.jit(lambda a: jnp.sum(jnp.sin(a) * a), mesh={"x": 3}, in_shardings=(P("x"),))
    plain = jitted.function
    a = rows(7)
    agree(
        jax.grad(lambda a: jnp.sum(jax.grad(jitted)(a) ** 2))(a),
        jax.grad(lambda a: jnp.sum(jax.grad(plain)(a) ** 2))(a),
    )


def test_integers_have_no_gradient_and_do_not_hinder_it() -> None:
    def pick(table: Any, rows: Any) -> Any:
        return jnp.sum(table[rows] ** 2), rows + 1

    table, indices = rows(10, 3), np.array([1, 7, 1, 0, 9], np.int32)
    jitted = spmdc.jit(pick, mesh={"x": 4}, in_shardings=(P("x"), None))
    agree(jax.grad(jitted, has_aux=True)(table, indices), jax.grad(pick, has_aux=True)(table, indices))


def test_it_can_be_traced_by_jit_and_vmap() -> None:
    jitted = spmdc.jit(lambda a, b: jnp.tanh(a @ b), mesh=_SIZES, in_shardings=(P("x"), P(None, "y")))
    plain = jitted.function
    a, b = rows(5, 7), rows(7, 6)
    agree(jax.jit(lambda a, b: jitted(a, b) * 2)(a, b), plain(a, b) * 2)
    many = rows(3, 5, 7)
    agree(jax.vmap(jitted, in_axes=(0, None))(many, b), jax.vmap(plain, in_axes=(0, None))(many, b))


def test_static_arguments_by_position_and_by_name() -> None:
    traces: list[int] = []

    def power(a: Any, n: int, *, negate: bool = False) -> Any:
        traces.append(n)
        return -(a**n) if negate else a**n

    jitted = spmdc.jit(power, mesh={"x": 2}, static_argnums=1, static_argnames="negate", in_shardings=(P("x"),))
    a = rows(5)
    agree(jitted(a, 2), a**2)
    agree(jitted(a, n=2), a**2)
    agree(jitted(a, 3, negate=True), -(a**3))
    count = len(traces)
    agree(jitted(a + 1, 2), (a + 1) ** 2)
    assert len(traces) == count


def test_a_shape_is_partitioned_once() -> None:
    traces: list[tuple[int, ...]] = []

    def double(a: Any) -> Any:
        traces.append(a.shape)
        return a * 2

    jitted = spmdc.jit(double, mesh={"x": 2})
    for shape in ((3,), (3,), (4,), (3,), (4,)):
        jitted(rows(*shape))
    assert traces == [(3,), (4,)]


def test_the_place_of_an_argument_is_no_reason_to_partition_again() -> None:
    traces: list[None] = []

    def step(a: Any) -> Any:
        traces.append(None)
        return a * 2

    jitted = spmdc.jit(step, mesh={"x": 2}, in_shardings=P("x"), out_shardings=P())
    agree(jitted(jitted(rows(5))), rows(5) * 4)
    assert len(traces) == 1


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_of_random_numbers_go_in_and_come_out(impl: str) -> None:
    def step(a: Any, key: Any) -> Any:
        key, now = jax.random.split(key)
        return jnp.where(jax.random.bernoulli(now, 0.5, a.shape), a, 0.0), key

    jitted = spmdc.jit(step, mesh={"x": 2}, in_shardings=(P("x"), P()))
    key = expected_key = jax.random.key(3, impl=impl)
    for _ in range(2):
        a, key = jitted(rows(4, 6), key)
        expected, expected_key = jax.jit(step)(rows(4, 6), expected_key)
        agree(a, expected)
        assert key.dtype == expected_key.dtype
        agree(jax.random.key_data(key), jax.random.key_data(expected_key))


def test_gradients_through_random_numbers_and_many_keys() -> None:
    def loss(a: Any, keys: Any) -> Any:
        kept = jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, (6,)))(keys)
        return jnp.sum(jnp.where(kept, a, 0.0) ** 2)

    keys = jax.random.split(jax.random.key(0), 4)
    jitted = spmdc.jit(loss, mesh={"x": 2}, in_shardings=(P("x"), P("x")))
    agree(jax.grad(jitted)(rows(4, 6), keys), jax.grad(loss)(rows(4, 6), keys))
    assert jitted.partitioned(rows(4, 6), keys).program.main.params[1].shape == (2, 2)


def test_numbers_are_weakly_typed_as_in_jax() -> None:
    jitted = spmdc.jit(lambda a, s: a * s, mesh={"x": 2})
    half = jnp.ones(4, jnp.bfloat16)
    assert jitted(half, 2.0).dtype == jnp.bfloat16
    assert jitted(half, np.float32(2)).dtype == jnp.float32


def test_it_decorates() -> None:
    def triple(a: Any) -> Any:
        """Three times."""
        return 3 * a

    jitted = spmdc.jit(mesh={"x": 2}, in_shardings=(P("x"),))(triple)
    assert jitted.__doc__ == "Three times."
    agree(jitted(rows(5)), 3 * rows(5))


def test_devices_and_order_are_those_of_the_mesh() -> None:
    devices = np.array(ensure_devices(8))[[3, 1, 0, 2]].reshape(2, 2)
    mesh = Mesh(devices, ("a", "b"))
    jitted = spmdc.jit(lambda a: a * 2, mesh=mesh, in_shardings=(P("a", "b"),), out_shardings=P("a", "b"))
    result = jitted(rows(4, 6))
    agree(result, rows(4, 6) * 2)
    assert result.sharding.is_equivalent_to(NamedSharding(mesh, P("a", "b")), 2)


def test_the_place_of_a_committed_argument_is_its_sharding() -> None:
    mesh = Mesh(np.array(ensure_devices(8))[:4], ("x",))
    a = jax.device_put(rows(6, 8), NamedSharding(mesh, P(None, "x")))
    jitted = spmdc.jit(lambda a: jnp.sin(a), mesh=mesh)
    assert jitted.partitioned(a).program.main.params[0].shape == (6, 2)
    assert jitted(a).sharding.is_equivalent_to(a.sharding, 2)


def test_a_donated_argument_is_used_up() -> None:
    mesh = Mesh(np.array(ensure_devices(8))[:4], ("x",))
    a = jax.device_put(rows(8, 6), NamedSharding(mesh, P("x")))
    jitted = spmdc.jit(lambda a, b: a + b, mesh=mesh, in_shardings=(P("x"), P("x")), donate_argnums=0)
    b = jax.device_put(rows(8, 6), NamedSharding(mesh, P("x")))
    agree(jitted(a, b), rows(8, 6) * 2)
    assert a.is_deleted()
    assert not b.is_deleted()


def test_the_mesh_may_come_from_the_context() -> None:
    mesh = Mesh(np.array(ensure_devices(8))[:4], ("x",))
    jitted = spmdc.jit(lambda a: a + 1, in_shardings=(P("x"),))
    with jax.set_mesh(mesh):
        assert jitted.partitioned(rows(8)).program.main.params[0].shape == (2,)
        agree(jitted(rows(8)), rows(8) + 1)
    with pytest.raises(SpmdcError) as caught:
        jitted(rows(8))
    assert caught.value.diagnostics[0].code == "E306"


def test_an_error_of_the_function_is_the_functions() -> None:
    with pytest.raises(TypeError, match="dot_general"):
        spmdc.jit(lambda a: a @ a, mesh={"x": 2})(rows(2, 3))


@pytest.mark.parametrize(
    ("code", "shardings"), [("E301", P("z")), ("E302", P("x", "x")), ("E303", P("x", None, None)), ("E303", (P(), P()))]
)
def test_a_sharding_that_does_not_fit(code: str, shardings: Any) -> None:
    with pytest.raises(SpmdcError) as caught:
        spmdc.jit(lambda a: a, mesh=_SIZES, in_shardings=(shardings,))(rows(4, 4))
    assert caught.value.diagnostics[0].code == code


@pytest.mark.parametrize("side", ["in_shardings", "out_shardings"])
def test_only_what_is_said_of_too_many_in_shardings_speaks_of_arguments_by_position(side: str) -> None:
    given: dict[str, Any] = {side: (P(), P())}
    with pytest.raises(SpmdcError) as caught:
        spmdc.jit(lambda a: (a,), mesh=_SIZES, **given)(rows(4, 4))
    (found,) = caught.value.diagnostics
    assert found.code == "E303"
    assert found.message.startswith(f"{side} is no prefix")
    assert ("by position" in found.help) == (side == "in_shardings")
    assert "tree_map" not in found.message
    assert f"at key path\n    {side}" in found.message


def test_an_array_that_is_donated_and_given_twice_is_reported() -> None:
    """JAX 0.10 ends the process over one."""
    mesh = Mesh(np.array(ensure_devices(8))[:4], ("x",))
    a = jax.device_put(rows(8, 6), NamedSharding(mesh, P("x")))

    def adds(tree: Any, b: Any) -> Any:
        return tree["w"] + b, tree["u"]

    jitted = spmdc.jit(adds, mesh=mesh, in_shardings=(P("x"), P("x")), donate_argnums=0)
    spare = [a + i for i in range(3)]
    for call in (jitted, jitted, jitted.lower({"w": a, "u": a}, a).compile()):
        twice: list[tuple[Any, tuple[str, str]]] = [
            (({"w": a, "u": spare[0]}, a), ("tree['w']", "b")),
            (({"w": a, "u": a}, spare[1]), ("tree['w']", "tree['u']")),
        ]
        for arguments, names in twice:
            with pytest.raises(SpmdcError) as caught:
                call(*arguments)
            (diagnostic,) = caught.value.diagnostics
            assert diagnostic.code == "E514"
            assert sorted(diagnostic.message.split(" is donated, and the same array is given as ")) == sorted(names)
            assert diagnostic.help
    agree(jitted({"w": jnp.copy(a), "u": spare[0]}, a)[0], rows(8, 6) * 2)
    agree(spmdc.jit(lambda a, b: b * 2, mesh=mesh, in_shardings=(P("x"), P("x")), donate_argnums=0)(a, a), a * 2)
    whole = rows(8, 6)
    agree(jitted({"w": whole, "u": whole}, whole)[0], whole * 2)


def test_what_takes_more_memory_than_the_machine_has_is_reported_at_its_op() -> None:
    """JAX ends the process over it."""

    def spread(a: Any) -> Any:
        return jnp.zeros((1 << 20, 1 << 20)) + jnp.sum(a)

    jitted = spmdc.jit(spread, mesh=_SIZES, in_shardings=(P("x"),))
    compiled = jitted.lower(rows(4, 4)).compile()
    for call in (jitted, compiled, jax.grad(lambda a: jnp.sum(jitted(a)))):
        with pytest.raises(SpmdcError) as caught:
            call(rows(4, 4))
        (diagnostic,) = caught.value.diagnostics
        assert diagnostic.code == "E505"
        assert diagnostic.span is not None
        assert "1 << 20" in (diagnostic.span.source.line(diagnostic.span.line) or "")
        assert "f32[1048576" in diagnostic.notes[0]


def test_a_function_is_partitioned_for_the_machine_that_is_asked_for() -> None:
    """A loop over parts that travel hides them behind products, if a device does both at a time; where a turn takes a
    second, they are gathered."""
    make: Any = jax.ShapeDtypeStruct
    struct = make((4096, 4096), jnp.float32)

    def kinds(machine: spmdc.Machine) -> list[str]:
        specs = (P("d"), P(None, "d"))
        multiply = spmdc.jit(jnp.matmul, mesh={"d": 4}, in_shardings=specs, out_shardings=P("d"), machine=machine)
        return [c.kind for c in multiply.partitioned(struct, struct).collectives()]

    overlaps = replace(spmdc.TPU_V3, asynchronous=True)
    assert kinds(spmdc.TPU_V3) == ["all_gather"]
    assert kinds(overlaps) == ["collective_permute"]
    assert kinds(replace(overlaps, name="hesitant", turn=1.0)) == ["all_gather"]


def test_what_is_made_of_a_function_is_for_its_machine_too() -> None:
    x = np.ones((8, 8), np.float32)
    square = spmdc.jit(lambda x: (x @ x).sum(), mesh={"d": 4}, machine=spmdc.machine("h100"))
    agree(jax.grad(square)(x), np.full((8, 8), 16, np.float32))
    with pytest.raises(SpmdcError, match="E604"):
        spmdc.jit(jnp.sin, mesh={"d": 4}, machine=spmdc.machine("tpu-v4:3x3x3"))(x)
