"""`spmdc.jit` over meshes with axes that types name (Explicit), that they do not (Auto), or some of each."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import spmdc
from ir.diagnostics import SpmdcError
from lowering.jax import ensure_devices
from lowering.jax.versions import ShardingTypeError
from spmdc.frontends.jax.jaxprs import uses

P: Any = PartitionSpec
constrain: Any = jax.lax.with_sharding_constraint
reshard: Any = jax.sharding.reshard
psum: Any = jax.lax.psum
A = np.arange(64, dtype=np.float32).reshape(8, 8)

ensure_devices(8)
TYPES = {
    "explicit": (AxisType.Explicit, AxisType.Explicit),
    "auto": (AxisType.Auto, AxisType.Auto),
    "mixed": (AxisType.Explicit, AxisType.Auto),
}
MESHES: dict[str, Any] = {name: jax.make_mesh((4, 2), ("x", "y"), axis_types=t) for name, t in TYPES.items()}
EXPLICIT = MESHES["explicit"]


def placed(mesh: Any, *spec: Any, value: Any = A) -> Any:
    return jax.device_put(value, NamedSharding(mesh, P(*spec)))


@pytest.mark.parametrize("kind", MESHES)
def test_results_are_on_the_mesh_of_the_arguments_and_mix_with_them(kind: str) -> None:
    mesh = MESHES[kind]
    a, w = placed(mesh, "x", "y"), placed(mesh)
    with jax.set_mesh(mesh):
        result = spmdc.jit(lambda a, w: jnp.sin(a) + w)(a, w)
        assert result.sharding.mesh == mesh
        assert jax.typeof(result) == jax.typeof(jnp.sin(a))
        np.testing.assert_allclose(result + a, np.sin(A) + A + A, rtol=1e-5)


@pytest.mark.parametrize("kind", MESHES)
@pytest.mark.parametrize("around", [True, False], ids=["inside of set_mesh", "outside"])
def test_the_types_of_results_are_those_of_jax(kind: str, around: bool) -> None:
    mesh = MESHES[kind]
    a, w = placed(mesh, "x"), placed(mesh, None, "x")
    functions: list[Any] = [
        lambda a, w: jnp.tanh(a) @ w.sum(1),
        lambda a, w: jnp.concatenate([a, a], 1),
        lambda a, w: (a.sum(), a.reshape(64), a.reshape(4, 2, 8)),
        lambda a, w: a + jnp.zeros(a.shape, out_sharding=jax.typeof(a).sharding),
        lambda a, w: jax.lax.scan(lambda c, _: (jnp.sin(c), c.sum()), a, None, length=2)[0],
    ]
    for function in functions:
        with jax.set_mesh(mesh) if around else nullcontext():
            got, expected = spmdc.jit(function)(a, w), jax.jit(function)(a, w)
        for g, e in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            assert jax.typeof(g) == jax.typeof(e)
            np.testing.assert_allclose(g, e, rtol=1e-5)


@pytest.mark.parametrize("kind", MESHES)
def test_a_result_is_on_the_sharding_that_is_written(kind: str) -> None:
    """P("x") and P("x", None) split alike, and are not equal to JAX, which compiles again for the other."""
    mesh = MESHES[kind]
    rows = NamedSharding(mesh, P("x", None))
    a = jax.device_put(A, rows)
    for spec in (None, P("x"), P("x", None), P(None, None), P(), P("y", "x"), P(("x",), None)):
        options: Any = {"in_shardings": rows, "out_shardings": None if spec is None else NamedSharding(mesh, spec)}
        got, expected = (jit(lambda a: a * 2, **options)(a) for jit in (spmdc.jit, jax.jit))
        assert got.sharding == expected.sharding


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("spec", [("x", "y"), (None, ("y", "x")), (None, "y")], ids=str)
def test_a_result_is_on_axes_of_size_1_too_and_is_an_argument_without_compiling_again(kind: str, spec: Any) -> None:
    mesh = jax.make_mesh((8, 1), ("x", "y"), axis_types=TYPES[kind])
    a = placed(mesh, *spec)
    choices: list[Any] = [{}, {"out_shardings": NamedSharding(mesh, P(*spec))}]
    for options in choices:
        function: Any = spmdc.jit(lambda a: a * 2, **options)
        once = function(a)
        assert once.sharding == a.sharding
        assert jax.typeof(once) == jax.typeof(a)
        np.testing.assert_array_equal(function(once), A * 4)
        assert function._cache_size() == 1


@pytest.mark.parametrize("kind", MESHES)
def test_a_result_is_in_the_memory_that_is_written(kind: str) -> None:
    """A training state that waits in the host's memory, and comes back in the next call."""
    mesh = MESHES[kind]
    places: Any = {
        "moments": NamedSharding(mesh, P("x"), memory_kind="pinned_host"),
        "weights": NamedSharding(mesh, P("x", "y")),
    }

    def step(state: Any) -> Any:
        moments = state["moments"] * 2
        return {"moments": moments, "weights": state["weights"] + moments}

    options: Any = {"out_shardings": places}
    expected = jax.jit(step, **options)({"moments": placed(mesh, "x"), "weights": placed(mesh, "x", "y")})
    function = spmdc.jit(step, mesh=mesh, **options)
    got = function({"moments": placed(mesh, "x"), "weights": placed(mesh, "x", "y")})
    for name in places:
        assert got[name].sharding == expected[name].sharding
        assert function.trace(got).lower().compile().output_shardings[name].memory_kind == places[name].memory_kind
    np.testing.assert_array_equal(function(got)["weights"], A * 7)


@pytest.mark.parametrize("kind", ["explicit", "mixed"])
def test_results_have_the_very_shardings_of_jax_where_types_name_axes(kind: str) -> None:
    """P("x") and P("x", None) are the same sharding, and not equal."""
    mesh = MESHES[kind]
    a = placed(mesh, "x")
    keys = placed(mesh, "x", value=jax.random.split(jax.random.key(0), 8))
    draw: Any = jax.vmap(lambda key: jax.random.uniform(key, (8,)))
    uses: Any = (
        lambda jit: jit(lambda a: (a * 2, a @ jnp.ones((8, 8)), jnp.sum(a, 1)))(a),
        lambda jit: jax.vmap(jit(lambda row: row * 2))(a),
        lambda jit: jax.grad(lambda a: jnp.sum(jit(jnp.sin)(a)))(a),
        lambda jit: (jit(draw)(keys), jit(lambda keys, a: a + draw(keys))(keys, a)),
    )
    for use in uses:
        with jax.set_mesh(mesh):
            wanted, got = (jax.tree.leaves(use(jit)) for jit in (jax.jit, spmdc.jit))
        assert [g.sharding.spec for g in got] == [w.sharding.spec for w in wanted]
        for g, w in zip(got, wanted, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-5)


@pytest.mark.parametrize("kind", MESHES)
def test_a_batch_is_split_by_its_type_as_in_jax(kind: str) -> None:
    mesh = MESHES[kind]
    a, w = placed(mesh, "x"), placed(mesh, None, "y")

    def products(a: Any, w: Any) -> Any:
        return jnp.sin(a @ w), a.sum(), w.sum()

    def uses(jit: Any) -> list[Any]:
        many = jax.vmap(jit(products), in_axes=(0, None))
        return [
            many,
            jax.jit(many),
            jax.vmap(jit(products), in_axes=(1, None)),
            jax.jit(lambda a, w: many(a, w)[1] + a.sum(1)),
            jax.grad(lambda a, w: many(a, w)[0].sum()),
        ]

    with jax.set_mesh(mesh):
        for use, plain in zip(uses(spmdc.jit), uses(jax.jit), strict=True):
            got, expected = use(a, w), plain(a, w)
            for g, e in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
                assert jax.typeof(g) == jax.typeof(e)
                np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-5)


def test_annotations_of_explicit_programs_are_taken_for_what_they_are() -> None:
    a, b = placed(EXPLICIT, "x", "y"), placed(EXPLICIT, "y", "x")

    def layers(a: Any, b: Any) -> Any:
        h = jnp.einsum("ij,jk->ik", a, b, out_sharding=P("x", None))
        h = reshard(h, P(None, "y"))
        return constrain(h * 2, P(None, "y"))

    with jax.set_mesh(EXPLICIT):
        function = spmdc.jit(layers)
        np.testing.assert_allclose(function(a, b), 2 * A @ A, rtol=1e-5)
        assert jax.typeof(function(a, b)) == jax.typeof(jax.jit(layers)(a, b))
        compiled = function.lower(a, b).compile()
    assert "num_partitions=8" in compiled.as_text()
    assert function.partitioned(a, b).program.main.results[0].type.shape == (8, 4)


def test_what_types_leave_open_is_up_to_the_partitioner() -> None:
    """JAX refuses the product: either operand's axis could split it."""
    a = placed(EXPLICIT, "x", "y")
    with jax.set_mesh(EXPLICIT):
        with pytest.raises(ShardingTypeError):
            jax.jit(lambda a, b: a @ b)(a, a)
        result = spmdc.jit(lambda a, b: a @ b)(a, a) + a
    assert result.sharding == a.sharding
    np.testing.assert_allclose(result, A @ A + A, rtol=1e-5)


def test_what_types_leave_open_is_up_to_the_partitioner_in_transformations_too() -> None:
    def gram(a: Any) -> Any:
        return jnp.sin(a) @ a.T

    def transformed(f: Any, a: Any) -> list[Any]:
        return [
            jax.grad(lambda a: f(a).sum())(a),
            jax.grad(lambda a: jax.checkpoint(f)(a).sum())(a),
            jax.jvp(f, (a,), (a,))[1],
            jax.linearize(f, a)[1](a),
            jax.vmap(f)(jnp.stack([a, a])),
            jax.hessian(lambda a: f(a).sum())(a),
        ]

    a = placed(EXPLICIT, "x", "y", value=A / 64)
    with jax.set_mesh(EXPLICIT):
        found = transformed(spmdc.jit(gram), a)
    for got, expected in zip(found, transformed(gram, A / 64), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_program_that_speaks_of_types_and_leaves_some_open_is_refused_as_by_jax() -> None:
    a = placed(EXPLICIT, "x", "y")
    with pytest.raises(ShardingTypeError), jax.set_mesh(EXPLICIT):
        spmdc.jit(lambda a, b: reshard(a @ b, P("x")))(a, a)


@pytest.mark.parametrize("kind", MESHES)
def test_shapes_that_the_mesh_does_not_divide(kind: str) -> None:
    mesh = MESHES[kind]
    odd = A[:5]
    with jax.set_mesh(mesh):
        function: Any = spmdc.jit(lambda a: jnp.cumsum(a, 0) * 2, in_shardings=P("x", "y"), out_shardings=P("x", "y"))
        result = function(odd)
        np.testing.assert_allclose(result, np.cumsum(odd, 0) * 2)
        assert result.sharding.mesh.axis_types == TYPES[kind]
        np.testing.assert_allclose(function(result), np.cumsum(np.cumsum(odd, 0) * 2, 0) * 2)
        around = cast("Any", jax.jit)(lambda a: function(a) + 1)
        np.testing.assert_allclose(around(odd), np.cumsum(odd, 0) * 2 + 1)


@pytest.mark.parametrize("kind", MESHES)
def test_transformations_and_what_jax_traces_around(kind: str) -> None:
    mesh = MESHES[kind]
    a, w = placed(mesh, "x"), placed(mesh)

    def energy(a: Any, w: Any) -> Any:
        return jnp.sum(jnp.sin(a) @ w)

    function = spmdc.jit(energy)
    with jax.set_mesh(mesh):
        expected = jax.grad(energy)(a, w)
        transforms: list[Any] = [
            lambda f: jax.grad(f)(a, w),
            lambda f: jax.jit(jax.grad(f))(a, w),
            lambda f: jax.jit(lambda a, w: jax.grad(f)(a, w) + a)(a, w) - a,
            lambda f: spmdc.jit(jax.grad(f))(a, w),
        ]
        for transform in transforms:
            got = transform(function)
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
            assert jax.typeof(got) == jax.typeof(expected)
        many = placed(mesh, None, "x", value=np.stack([A, A + 1]))
        np.testing.assert_allclose(
            jax.vmap(spmdc.jit(jnp.sin))(many), np.sin(np.stack([A, A + 1])), rtol=1e-5, atol=1e-5
        )
        one, tangent = jax.jvp(spmdc.jit(jnp.sin), (a,), (a,))
        np.testing.assert_allclose(tangent, np.cos(A) * A, rtol=1e-5, atol=1e-4)
        assert jax.typeof(one) == jax.typeof(tangent) == jax.typeof(a)


def test_axes_that_a_program_cuts() -> None:
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        a = placed(mesh, "d")
        function: Any = spmdc.jit(lambda a: spmdc.shard(a.reshape(2, 4, 8), "{devices=[2,4,1]<=[8]}") * 2)
        result = function(a)
        np.testing.assert_array_equal(result, A.reshape(2, 4, 8) * 2)
        assert result.sharding.mesh == mesh


def test_results_are_on_whole_axes_although_heads_are_split_over_parts_of_one() -> None:
    """Fewer heads than devices: parts of the axis split heads and what is in them; arrays of JAX know whole axes."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))

    def heads(x: Any) -> tuple[Any, Any]:
        y = x.reshape(6, 4, 16)
        return y - y.max(0), y.sum((0, 2))

    x = jax.device_put(np.arange(6 * 64, dtype="f4").reshape(6, 64) % 7, NamedSharding(mesh, P(None, "x")))
    found, total = spmdc.jit(heads)(x)
    assert (found.sharding.mesh, total.sharding.mesh) == (mesh, mesh)
    assert found.sharding.spec == P(None, None, "x")
    np.testing.assert_array_equal(found.reshape(6, 64) + x, heads(np.asarray(x))[0].reshape(6, 64) + np.asarray(x))
    np.testing.assert_array_equal(total, heads(np.asarray(x))[1])


def test_an_ambiguous_op_is_reported_even_if_the_function_needs_the_types_of_others() -> None:
    """Without types, `shard_map` cannot know how its operand is split."""

    def product(a: Any, b: Any) -> Any:
        mapped: Any = jax.shard_map(lambda part: part, out_specs=P("x", "y"))
        return mapped(a) @ b

    with jax.set_mesh(EXPLICIT), pytest.raises(ShardingTypeError, match="ambiguous"):
        spmdc.jit(product)(placed(EXPLICIT, "x", "y"), placed(EXPLICIT, "y"))


def test_from_jax_types_arguments_as_their_shardings_say_on_explicit_axes() -> None:
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    seen: list[str] = []

    def function(n: int, a: jax.Array, rest: dict[str, Any]) -> Any:
        seen.append(str(jax.typeof(a)))
        return jax.nn.relu(a * n) + rest["b"], rest["odd"]

    of: Any = jax.ShapeDtypeStruct
    rest = {"b": np.zeros((8,), np.float32), "odd": of((7,), np.float32)}
    specs = {"b": P("y"), "odd": P("y")}
    program = spmdc.from_jax(
        function, 3, of((16, 8), np.float32), rest,
        mesh=mesh, in_shardings=(P("x", "y"), specs), out_shardings=(P("x", "y"), P("y")), static_argnums=0,
    )  # fmt: skip
    assert seen == ["float32[16@x,8@y]"]
    assert [str(p.type) for p in program.main.params] == ["f32[16, 8]", "f32[8]", "f32[7]"]
    assert spmdc.partition(program).received_bytes() == 0


@pytest.mark.parametrize(
    ("sizes", "spec", "taken"),
    [
        ({"d": 8}, P("d"), "f32[8@(x,y), 8]"),
        ({"a": 2, "b": 4}, P("a"), "f32[8@x:(1)2, 8]"),
        ({"a": 2, "b": 2, "c": 2}, P(("a", "b"), "c"), "f32[8@x, 8@y]"),
        ({"c": 8, "one": 1}, P(None, "one"), "f32[8, 8]{replicated}"),
    ],
    ids=str,
)
def test_placements_on_other_meshes_of_the_same_devices(sizes: dict[str, int], spec: Any, taken: str) -> None:
    types = (AxisType.Auto,) * len(sizes)
    other = NamedSharding(jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=types), spec)
    jitted: Any = spmdc.jit(lambda a, b: a * 3 + b.T, in_shardings=(NamedSharding(MESHES["auto"], P()), other))
    np.testing.assert_array_equal(jitted(A, A), A * 3 + A.T)
    assert f"of {taken}) -> (" in jitted.lower(A, A).partitioned.text()
    annotated = spmdc.jit(lambda a: spmdc.shard(a * 2, other), mesh=MESHES["auto"])
    np.testing.assert_array_equal(annotated(A), A * 2)


def test_placements_on_a_mesh_that_cuts_the_devices_elsewhere() -> None:
    first, other = (
        jax.make_mesh(sizes, names, devices=jax.devices()[:6], axis_types=(AxisType.Auto,) * len(sizes))
        for sizes, names in (((2, 3), ("x", "y")), ((3, 1, 2), ("x", "one", "y")))
    )
    a, b = np.arange(12.0, dtype=np.float32), np.ones(12, np.float32)
    for whole in (P(), P("one")):
        shardings = NamedSharding(first, P("x")), NamedSharding(other, whole)
        np.testing.assert_array_equal(spmdc.jit(jnp.add, in_shardings=shardings)(a, b), a + 1)
    with pytest.raises(SpmdcError, match="E301"):
        spmdc.jit(jnp.add, in_shardings=(NamedSharding(first, P("x")), NamedSharding(other, P("x"))))(a, b)


def on_devices(devices: Any, *spec: Any) -> NamedSharding:
    return NamedSharding(jax.sharding.Mesh(np.array(devices), ("x",)), P(*spec))


FIRST, LAST = ([*jax.devices()[:4]], [*jax.devices()[4:8]])
ELSEWHERE: dict[str, Any] = {
    "an argument's": (lambda a: a, {"mesh": on_devices(LAST).mesh, "in_shardings": on_devices(FIRST, "x")}),
    "a result's": (lambda a: a, {"mesh": on_devices(LAST).mesh, "out_shardings": on_devices(FIRST, "x")}),
    "two arguments'": (lambda a: a[0], {"in_shardings": ([on_devices(FIRST, "x"), on_devices(LAST, "x")],)}),
    "another order": (lambda a: a[0], {"in_shardings": ([on_devices(FIRST, "x"), on_devices(FIRST[::-1])],)}),
    "sizes": (lambda a: a, {"mesh": {"x": 4}, "in_shardings": on_devices(LAST, "x")}),
    "in the code": (lambda a: constrain(a, on_devices(LAST, "x")), {"mesh": on_devices(FIRST).mesh}),
    "inside": (
        lambda a: spmdc.jit(jnp.sin, mesh=on_devices(LAST).mesh)(a), {"in_shardings": on_devices(FIRST, "x")}
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ELSEWHERE)
def test_shardings_on_other_devices_than_those_of_the_call_are_refused(what: str) -> None:
    function, options = ELSEWHERE[what]
    with pytest.raises(
        SpmdcError, match=r"E301.* on devices .*, and <lambda> runs on .*\n(.*\n)*.*help: .* of one mesh, in its order"
    ):
        spmdc.jit(function, **options)([A, A] if what in ("two arguments'", "another order") else A)


DEAD: dict[str, Any] = {
    "a constraint": lambda a: constrain(a, on_devices(LAST)),
    "a call": lambda a: spmdc.jit(jnp.sin, mesh=on_devices(LAST).mesh)(a),
    "one of two results": lambda a: jax.jit(lambda a: (a, constrain(a, on_devices(LAST))))(a)[1],
    "in a loop": lambda a: jax.lax.scan(lambda c, _: (c, constrain(c, on_devices(LAST))), a, length=2)[1],
}


@pytest.mark.parametrize("what", DEAD)
def test_what_is_not_used_may_be_on_other_devices_than_those_of_the_call(what: str) -> None:
    def function(a: Any) -> Any:
        DEAD[what](a)
        return a * 2

    np.testing.assert_array_equal(spmdc.jit(function, mesh=on_devices(FIRST).mesh)(A), A * 2)
    with pytest.raises(SpmdcError, match="E301"):
        spmdc.jit(DEAD[what], mesh=on_devices(FIRST).mesh)(A)


def test_what_a_function_uses_is_looked_at_once_for_all_its_calls() -> None:
    function: Any = jax.jit(lambda a: constrain(a, on_devices(LAST)))
    for _ in range(20):
        function = jax.jit(lambda a, inner=function: inner(inner(a)))
    found = list(itertools.islice(uses(jax.make_jaxpr(function)(A)), 10_000))
    assert any(isinstance(x, NamedSharding) for x, _ in found)
    assert len(found) < 1000


@pytest.mark.parametrize("sizes", [(2, 4), (4, 2)], ids=str)
def test_a_call_over_a_mesh_that_cuts_the_same_devices_elsewhere_is_a_part_of_the_other(sizes: tuple[int, int]) -> None:
    mesh = jax.make_mesh(sizes, ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    leaf = jax.jit(lambda a: spmdc.split(spmdc.shard(jnp.sin(a), P("b", "a")), 0, "a"))
    inner = spmdc.jit(lambda a: constrain(leaf(a) @ a, P("a", "b")).sum(), mesh=mesh, in_shardings=P("a", "b"))

    def function(a: Any) -> Any:
        return inner(a * 2) + constrain(a, P("x")).sum()

    outer = spmdc.jit(function, mesh={"x": 8})
    values = A / 64
    text = outer.lower(values).partitioned.text()
    assert f"x:(1){sizes[0]}, x:({sizes[0]}){sizes[1]}" in text
    plain = jnp.sum(jnp.sin(values * 2) @ (values * 2)) + values.sum()
    np.testing.assert_allclose(outer(values), plain, rtol=1e-5)
    expected = jax.grad(lambda a: jnp.sum(jnp.sin(a * 2) @ (a * 2)) + a.sum())(values)
    np.testing.assert_allclose(spmdc.jit(jax.grad(function), mesh={"x": 8})(values), expected, rtol=1e-5)


AUTO: dict[str, Any] = {
    str(sizes): jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))
    for sizes in ({"a": 2, "b": 4}, {"b": 4, "a": 2}, {"a": 4, "b": 2}, {"x": 8})
}
OTHERS = list(AUTO)[1:]


@pytest.mark.parametrize("sizes", OTHERS[:2])
def test_axes_of_a_call_may_have_the_names_of_others_around_it(sizes: str) -> None:
    around, mesh = next(iter(AUTO.values())), AUTO[sizes]

    def function(a: Any) -> Any:
        return constrain(jnp.sin(a) @ a, NamedSharding(mesh, P("a", "b")))

    inner = spmdc.jit(function, mesh=mesh, in_shardings=NamedSharding(mesh, P("b")))
    got = spmdc.jit(lambda a: constrain(inner(a * 2), NamedSharding(around, P("a", "b"))) + 1, mesh=around)(A / 64)
    np.testing.assert_allclose(got, function(A / 32) + 1, rtol=1e-5)


@pytest.mark.parametrize("sizes", OTHERS)
def test_a_shard_map_is_refused_in_a_call_over_another_mesh_than_that_around_it(sizes: str) -> None:
    around, mesh = next(iter(AUTO.values())), AUTO[sizes]
    names = mesh.axis_names
    total: Any = jax.shard_map(lambda t: psum(t, names), mesh=mesh, in_specs=P(names), out_specs=P())
    inner = spmdc.jit(lambda a: jax.jit(total)(a), mesh=mesh)
    calls: tuple[Any, ...] = (
        lambda a: inner(a),
        lambda a: spmdc.jit(lambda a: inner(a), mesh=mesh)(a),
        jax.grad(lambda a: inner(a).sum()),
    )
    for call in calls:
        with pytest.raises(SpmdcError, match=r"E301.*a shard_map is over the mesh \(.*\n(.*\n)*.*one mesh"):
            spmdc.jit(call, mesh=around)(A)
    over_one = spmdc.jit(lambda a: spmdc.jit(lambda a: inner(a), mesh=around)(a), mesh=mesh)
    np.testing.assert_array_equal(over_one(A), A.reshape(8, 1, 8).sum(0))


def test_a_call_over_explicit_axes_is_refused_inside_of_another_mesh() -> None:
    inner = spmdc.jit(jnp.sin, mesh=EXPLICIT)
    with pytest.raises(SpmdcError, match=r"E301.*\n.*not Explicit"):
        spmdc.jit(lambda a: inner(a), mesh={"x": 8})(A)
