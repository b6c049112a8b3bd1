"""What `spmdc.jit` takes and gives, as `jax.jit` does: kinds of arguments, caching, methods, ahead of time."""

from __future__ import annotations

import copy
import functools
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import spmdc
from ir.diagnostics import SpmdcError, error
from lowering.jax import ensure_devices
from lowering.jax.versions import layout_of
from spmdc.frontends.jax.execution import Execution
from spmdc.frontends.spmd import parse

P: Any = PartitionSpec
NOTHING: Any = np.zeros(6, jax.dtypes.float0)
ROWS = np.arange(6)
constrain: Any = jax.lax.with_sharding_constraint
struct: Any = jax.ShapeDtypeStruct
split: Any = spmdc.split
anything: Any = 3
clear_caches: Any = jax.clear_caches
SIZES = {"x": 4, "y": 2}
X = np.arange(30, dtype=np.float32).reshape(5, 6) / 10


def agree(got: Any, expected: Any) -> None:
    structure: Any = jax.tree.structure
    assert structure(got) == structure(expected)
    for g, e in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert (g.shape, g.dtype, g.weak_type) == (e.shape, e.dtype, e.weak_type)
        np.testing.assert_allclose(g, e, rtol=1e-5)


@pytest.mark.parametrize("arguments", [(1, 2.5), (True, 2), (1j, np.float32(2)), (np.int8(3), 1.0), (2.0, 3.0)])
def test_numbers_give_results_as_weakly_typed_as_with_jax(arguments: tuple[Any, ...]) -> None:
    def mixed(a: Any, b: Any) -> Any:
        return a + b, a * 2, b, 3.0, None

    agree(spmdc.jit(mixed, mesh=SIZES)(*arguments), jax.jit(mixed)(*arguments))


def test_settings_that_change_a_trace_belong_to_the_key() -> None:
    function = spmdc.jit(lambda a: a + jnp.arange(3.0), mesh=SIZES)
    a = np.arange(3, dtype=np.float32)
    assert function(a).dtype == np.float32
    with jax.enable_x64(True):
        assert function(a).dtype == np.float64


def test_static_arguments_of_different_types_are_different() -> None:
    function = spmdc.jit(lambda a, n: a * n, mesh=SIZES, static_argnums=1)
    whole = np.arange(3)
    assert [function(whole, n).dtype for n in (1, 1.0, True)] == [np.int32, np.float32, np.int32]


@pytest.mark.parametrize(
    "options",
    [
        {"static_argnums": 1}, {"static_argnames": "n"}, {"static_argnums": 1, "static_argnames": "k"},
        {"static_argnums": 2, "static_argnames": ("n",)}, {"static_argnums": (), "static_argnames": ("n", "k")},
    ],
)  # fmt: skip
def test_an_argument_is_static_where_it_is_for_jax(options: dict[str, Any]) -> None:
    def static_in(call: Any) -> list[bool]:
        def scaled(a: Any, n: Any, k: Any = 1) -> Any:
            found[:] = [isinstance(v, int) for v in (n, k)]
            return a * n + k

        found: list[bool] = []
        call(scaled)
        return found

    calls: Any = [((X, 2), {}), ((X,), {"n": 2}), ((X, 2, 3), {}), ((X, 2), {"k": 3})]
    for args, kwargs in calls:
        expected = static_in(lambda f, args=args, kwargs=kwargs: jax.jit(f, **options)(*args, **kwargs))
        assert expected == static_in(
            lambda f, args=args, kwargs=kwargs: spmdc.jit(f, mesh=SIZES, **options)(*args, **kwargs)
        )
        assert expected == static_in(lambda f, args=args, kwargs=kwargs: spmdc.from_jax(f, *args, **options, **kwargs))


@pytest.mark.parametrize("argument", ["text", 2**40, np.array([None])])
def test_an_argument_that_has_no_type_is_named_as_by_jax(argument: Any) -> None:
    def second(tree: Any) -> Any:
        return tree["w"][1]

    def message(call: Any) -> str:
        with pytest.raises((TypeError, OverflowError)) as problem:
            call({"w": [X, argument]})
        return str(problem.value)

    function = spmdc.jit(second, mesh=SIZES)
    expected = message(jax.jit(second))
    assert "tree['w'][1]" in expected
    assert message(function) == message(function.trace) == message(function.partitioned) == expected


def test_a_method_is_partitioned_for_its_instance() -> None:
    class Scale:
        def __init__(self, by: float) -> None:
            self.by = by

        @functools.partial(spmdc.jit, mesh=SIZES, static_argnums=0)
        def __call__(self, a: Any) -> Any:
            return a * self.by

    agree(Scale(3)(X), jnp.asarray(X) * 3)
    agree(Scale(4)(X), jnp.asarray(X) * 4)


def test_the_mesh_may_come_from_shardings_or_arguments() -> None:
    mesh = Mesh(np.array(ensure_devices(8)).reshape(4, 2), ("x", "y"))
    lying = NamedSharding(mesh, P(None, "y"))
    for function in (spmdc.jit(jnp.sin, in_shardings=(lying,)), spmdc.jit(jnp.sin, out_shardings=lying)):
        assert function.partitioned(X).program.main.results[0].type.shape == (5, 3)
    placed = jax.device_put(X, lying)
    assert spmdc.jit(jnp.sin).partitioned(placed).program.main.params[0].shape == (5, 3)


@pytest.mark.parametrize(
    "mesh", [SIZES, AbstractMesh((4, 2), ("x", "y")), Mesh(np.array(ensure_devices(8)).reshape(4, 2), ("x", "y"))]
)
def test_specs_with_several_axes_and_with_free_dims(mesh: Any) -> None:
    function = spmdc.jit(jnp.sin, mesh=mesh, in_shardings=[P(P.UNCONSTRAINED, ("x", "y"))], out_shardings=P(("x",)))
    assert function.partitioned(X).program.main.params[0].shape == (5, 1)
    agree(function(X), jnp.sin(jnp.asarray(X)))


def test_axes_of_any_name_are_named_in_our_language() -> None:
    mesh = Mesh(np.array(ensure_devices(8)[:4]), ("data-parallel",))
    function = spmdc.jit(
        lambda a: spmdc.split(constrain(a * 2, P("data-parallel")), 0, "data-parallel"),
        mesh=mesh,
        in_shardings=(P("data-parallel"),),
    )
    agree(function(X), jnp.asarray(X) * 2)
    assert parse(function.partitioned(X).text()).mesh.names == ("data_parallel",)


@pytest.mark.parametrize(
    ("code", "mesh"), [("E305", 3), ("E305", {"x": "4"}), ("E305", {"x": 0}), ("E304", {"a-b": 2, "a_b": 2})]
)
def test_what_is_no_mesh_is_refused(code: str, mesh: Any) -> None:
    with pytest.raises(SpmdcError) as caught:
        spmdc.jit(jnp.sin, mesh=mesh)(X)
    assert caught.value.diagnostics[0].code == code
    assert caught.value.diagnostics[0].help


@pytest.mark.parametrize(
    ("code", "annotate"),
    [
        ("E303", lambda a: split(a, "x")),
        ("E203", lambda a: split(a, 0, 2.5)),
        ("E203", lambda a: spmdc.split(a, 0, True)),
        ("E309", lambda a: spmdc.shard(a, [0, "a"])),
    ],
)
def test_an_annotation_that_is_none_is_refused(code: str, annotate: Any) -> None:
    with pytest.raises(SpmdcError) as caught:
        spmdc.jit(annotate, mesh=SIZES)(X)
    assert caught.value.diagnostics[0].code == code


def test_a_single_device_places_values_on_a_mesh_of_one_and_on_no_larger_one() -> None:
    devices = ensure_devices(8)
    alone, one, several = SingleDeviceSharding(devices[0]), Mesh(devices[:1], ("x",)), Mesh(devices[:4], ("x",))
    f = spmdc.jit(lambda a: a + 1, mesh=one, in_shardings=(alone,), out_shardings=alone)
    np.testing.assert_array_equal(f(X), np.asarray(X) + 1)
    with pytest.raises(SpmdcError, match=r"over 1 of the 4 devices of the mesh \(x=4\)"):
        spmdc.jit(lambda a: a + 1, mesh=several, in_shardings=(alone,))(X)


def columns_first(x: Any) -> Any:
    """A matrix on devices whose columns lie one behind the other."""
    return jax.device_put(x, Format(Layout((1, 0)), x.sharding))


def test_arguments_may_be_in_any_layout_in_memory() -> None:
    mesh = Mesh(np.array(ensure_devices(8), dtype=object).reshape(4, 2), ("x", "y"))
    x = jax.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), NamedSharding(mesh, P("x", "y")))
    f = spmdc.jit(lambda a, b: a * 2 + b, mesh=mesh)
    for a, b in ((x, x), (columns_first(x), x), (columns_first(x), columns_first(x)), (x, x), (columns_first(x), x)):
        np.testing.assert_array_equal(f(a, b + 1), 3 * np.asarray(x) + 1)
        np.testing.assert_array_equal(f(a, columns_first(b + 1)), 3 * np.asarray(x) + 1)
    rows_whole = jax.device_put(columns_first(x), NamedSharding(mesh, P("y")))
    np.testing.assert_array_equal(f(columns_first(x), columns_first(rows_whole)), 3 * np.asarray(x))


@pytest.mark.parametrize("layout", [Layout((1, 0)), Layout((0, 1)), Layout.AUTO, None])
def test_the_layout_of_an_argument_may_be_specified(layout: Any) -> None:
    mesh = Mesh(np.array(ensure_devices(8), dtype=object).reshape(4, 2), ("x", "y"))
    x = jax.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), NamedSharding(mesh, P("x")))
    wanted = Format(layout, NamedSharding(mesh, P("x")))
    f = spmdc.jit(lambda a, b: a * 2 + b["c"], in_shardings=(wanted, {"c": P("y")}))
    for given in (np.asarray(x), x, columns_first(x), np.asarray(x)):
        np.testing.assert_array_equal(f(given, {"c": x}), 3 * np.asarray(x))
    compiled = f.lower(x, {"c": x}).compile()
    order = (1, 0) if layout == Layout((1, 0)) else (0, 1)
    assert compiled.input_formats[0][0].layout.major_to_minor == order
    given = columns_first(x) if order == (1, 0) else x
    np.testing.assert_array_equal(
        compiled(given, {"c": jax.device_put(x, NamedSharding(mesh, P("y")))}), 3 * np.asarray(x)
    )


@pytest.mark.parametrize(("layout", "order"), [(Layout((1, 0)), (1, 0)), (Layout.AUTO, (0, 1)), (None, (0, 1))])
def test_results_are_in_the_layout_that_is_asked_for(layout: Any, order: tuple[int, int]) -> None:
    mesh = Mesh(np.array(ensure_devices(8), dtype=object).reshape(4, 2), ("x", "y"))
    x = jax.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), NamedSharding(mesh, P("x")))
    wanted = Format(layout, NamedSharding(mesh, P(None, "y")))
    for jit in (jax.jit, spmdc.jit):
        y, z = jit(lambda a: (a + 1, a), out_shardings=(wanted, None))(x)
        np.testing.assert_array_equal(y, np.asarray(x) + 1)
        assert (layout_of(y).major_to_minor, layout_of(z).major_to_minor) == (order, (0, 1))
        assert y.sharding == wanted.sharding


@pytest.mark.parametrize(("layout", "order"), [(Layout((1, 0)), (1, 0)), (Layout.AUTO, (0, 1)), (None, (0, 1))])
def test_results_that_are_moved_are_in_that_layout_too(layout: Any, order: tuple[int, int]) -> None:
    """Types that name axes cannot say how the argument is split, which runs on another mesh."""
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    wanted = Format(layout, NamedSharding(mesh, P()))
    with jax.set_mesh(mesh):
        f = spmdc.jit(lambda a: (a + 1, a), in_shardings=P(("x", "y")), out_shardings=(wanted, None))
        y, _ = f(X)
    np.testing.assert_array_equal(y, X + 1)
    assert (y.sharding, layout_of(y).major_to_minor) == (wanted.sharding, order)


def test_a_spec_that_does_not_fit_is_reported_with_what_it_is_for() -> None:
    for options, said in (
        ({"in_shardings": (P(), {"w": P("z")})}, "w: axis 'z' is not in the mesh"),
        ({"in_shardings": (P(), {"w": P("x", None, None)})}, "w: the PartitionSpec names 3 dims"),
        ({"out_shardings": {"w": P("x", "x")}}, "result w: axis 'x'"),
    ):
        with pytest.raises(SpmdcError) as caught:
            spmdc.jit(lambda a, b: {"w": a + b["w"]}, mesh=SIZES, **options)(X, {"w": X})
        assert said in caught.value.diagnostics[0].message


@pytest.mark.parametrize(
    "options",
    [
        {"in_shardings": P("z")},
        {"in_shardings": P("x", None, None)},
        {"out_shardings": P("x", None, None)},
        {"in_shardings": (P("x"), P("y"))},
        {"out_shardings": (P("x"), P("y"))},
    ],
)
def test_what_jax_refuses_by_a_value_error_is_refused_by_one(options: Any) -> None:
    mesh = Mesh(np.array(ensure_devices(8), dtype=object).reshape(4, 2), ("x", "y"))
    with jax.set_mesh(mesh):
        for jit in (jax.jit, functools.partial(spmdc.jit, mesh=mesh)):
            with pytest.raises(ValueError, match=r"axis|dims|rank|length|structure|tree"):
                jit(lambda a: a, **options)(X)


@pytest.mark.parametrize(
    "options",
    [
        {"static_argnums": 5},
        {"static_argnames": "b"},
        {"donate_argnums": 5},
        {"donate_argnames": "b"},
        {"static_argnums": 0, "donate_argnums": 0},
        {"static_argnames": "a", "donate_argnums": 0},
    ],
)
def test_options_that_do_not_fit_the_function_are_refused_as_by_jax(options: Any) -> None:
    with pytest.raises(ValueError, match="argn"):
        spmdc.jit(lambda a: a, mesh=SIZES, **options)
    with pytest.raises(TypeError):
        spmdc.jit(anything, mesh=SIZES)


def test_lowered_and_compiled_ahead_of_time() -> None:
    function = spmdc.jit(lambda a, n, b: a * n + b["w"], mesh=SIZES, static_argnums=1, in_shardings=(P("x"), None))
    arguments = struct((5, 6), np.float32), 3, {"w": struct((6,), np.float32)}
    lowered = function.lower(*arguments)
    assert lowered.out_info.shape == (5, 6)
    assert function.eval_shape(*arguments).shape == (5, 6)
    assert "tensor<2x6xf32>" in lowered.as_text()
    assert lowered.as_text("hlo").startswith("HloModule")
    compiled = lowered.compile()
    agree(compiled(X, {"w": np.ones(6, np.float32)}), jnp.asarray(X) * 3 + 1)
    assert "num_partitions=8" in compiled.as_text()
    assert compiled.memory_analysis() is not None
    with pytest.raises(TypeError, match="compiled for"):
        compiled(X[:2], {"w": np.ones(6, np.float32)})
    with pytest.raises(TypeError, match="compiled for"):
        compiled(X)
    function.clear_cache()
    assert not function.specialisations


def test_a_compiled_call_that_fails_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What JAX's own checks refuse is placed and called again, which must not happen to what has run."""
    compiled = spmdc.jit(lambda a: a + 1, mesh=SIZES).lower(X).compile()
    calls: list[int] = []

    def failing(*leaves: Any) -> Any:
        calls.append(len(leaves))
        raise jax.errors.JaxRuntimeError("it has run, and failed")

    def explained(execution: Any, problem: Exception) -> Exception:
        return error("E510", f"the call fails: {problem}")

    x = compiled(compiled(X))
    monkeypatch.setattr(Execution, "explained", explained)
    monkeypatch.setattr(compiled, "_stage", failing)
    with pytest.raises(SpmdcError, match="E510"):
        compiled(x)
    assert calls == [1]


def test_compiled_calls_are_counted_as_by_jax() -> None:
    sizes = []
    for jit in (jax.jit, functools.partial(spmdc.jit, mesh=SIZES)):
        f: Any = jit(lambda a: a * 2)
        sizes.append([f._cache_size()])
        for x in (X, X, jnp.asarray(X), X[:2], X):
            f(x)
            sizes[-1].append(f._cache_size())
        f.clear_cache()
        sizes[-1].append(f._cache_size())
    assert sizes[0] == sizes[1]


def test_a_function_is_traced_again_after_its_cache_was_cleared() -> None:
    by = [2.0]

    def scaled(a: Any) -> Any:
        return a * by[0]

    function = spmdc.jit(scaled, mesh=SIZES)
    inside: Any = jax.vmap(lambda a: function(a))
    agree((function(X), inside(X)), (jnp.asarray(X) * 2,) * 2)
    by[0] = 3.0
    agree((function(X), inside(X)), (jnp.asarray(X) * 2,) * 2)
    function.clear_cache()
    agree((function(X), inside(X)), (jnp.asarray(X) * 3,) * 2)


def test_jax_clears_the_caches_of_functions_along_with_its_own() -> None:
    function = spmdc.jit(lambda a: a * 2, mesh=SIZES)
    function(X)
    assert function.specialisations
    clear_caches()
    assert not function.specialisations
    agree(function(X), jnp.asarray(X) * 2)


def test_a_first_call_finds_as_many_host_devices_as_the_mesh_has() -> None:
    program = 'import spmdc, numpy as np; print(spmdc.jit(lambda a: a * 2, mesh={"x": 12})(np.ones(5))[4])'
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "2.0", done.stderr


def test_static_arguments_that_cannot_be_hashed_are_reported_as_by_jax() -> None:
    function = spmdc.jit(lambda a, n: a * n[0], mesh=SIZES, static_argnums=1)
    for static in ([3], ([3],)):
        with pytest.raises(ValueError, match="hashable"):
            function(X, static)


def test_a_function_is_its_own_copy() -> None:
    function = spmdc.jit(lambda a: a * 2, mesh=SIZES)
    assert copy.deepcopy({"f": function})["f"] is function
    agree(copy.copy(function)(X), jnp.asarray(X) * 2)


def test_numbers_that_jax_looks_for_are_reported_at_the_op_that_gives_them() -> None:
    function = spmdc.jit(lambda a: jnp.sum(jnp.sqrt(a - 1)), mesh=SIZES)
    late = spmdc.jit(lambda a: jnp.sum(a), mesh=SIZES)
    with jax.debug_nans(True):
        for call in (function, jax.grad(function)):
            with pytest.raises(FloatingPointError, match=r"nan.*encountered in sqrt"):
                call(X)
        with pytest.raises(FloatingPointError, match="nan"):
            late(np.full(4, np.nan, np.float32))
    with jax.debug_infs(True), pytest.raises(FloatingPointError, match=r"inf.*encountered in"):
        spmdc.jit(lambda a: 1 / a, mesh=SIZES)(jnp.asarray(X))


@pytest.mark.parametrize(
    "call",
    [
        lambda jit: jit(lambda x, nothing: (x * 2, nothing))(np.ones(6), NOTHING),
        lambda jit: jit(lambda x, nothing: (x * 2, nothing)).lower(np.ones(6), NOTHING).compile()(np.ones(6), NOTHING),
        lambda jit: jit(lambda i: jax.grad(lambda i: jnp.sum(i * 2.0), allow_int=True)(i))(np.arange(6)),
        lambda jit: jit(lambda i, nothing: jax.jvp(lambda i: (i + 1, i * 2.0), (i,), (nothing,)))(ROWS, NOTHING),
    ],
    ids=["called", "compiled", "gradient", "tangent"],
)
def test_tangents_of_integers_come_and_go_as_with_jax(call: Any) -> None:
    got, wanted = (jax.tree.leaves(call(jit)) for jit in (functools.partial(spmdc.jit, mesh={"x": 4}), jax.jit))
    assert [(g.dtype, g.shape) for g in got] == [(w.dtype, w.shape) for w in wanted]
    assert jax.dtypes.float0 in [g.dtype for g in got]
    for g, w in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(g, w)
