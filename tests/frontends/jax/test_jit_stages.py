"""The stages of `spmdc.jit`: what they have is what those of `jax.jit` have, and one executable serves all calls."""

from __future__ import annotations

import functools
import gc
import inspect
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from hlo_texts import received_in_hlo
from jax.experimental import topologies
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

import spmdc
from lowering.jax import ensure_devices

P: Any = PartitionSpec
struct: Any = jax.ShapeDtypeStruct
A = np.arange(64, dtype=np.float32).reshape(8, 8) / 10
_COMPILED = "/jax/core/compile/backend_compile_duration"


def scaled(a: Any, n: int = 2, *, b: Any) -> Any:
    return {"sum": jnp.sin(a) * n + b["w"], "key": b["w"][0]}


MESH = Mesh(np.array(ensure_devices(8)).reshape(4, 2), ("x", "y"))


def lying(*spec: Any) -> NamedSharding:
    return NamedSharding(MESH, P(*spec))


def jitted(**options: Any) -> Any:
    given: dict[str, Any] = {"mesh": MESH, "in_shardings": (P("x", "y"),), "static_argnums": 1}
    return spmdc.jit(scaled, **{**given, **options})


ARGUMENTS: Any = (A, 3)
NAMED: Any = {"b": {"w": np.ones(8, np.float32)}}


def names(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


@contextmanager
def counted_compiles() -> Iterator[list[str]]:
    """The names of events that say that XLA has compiled, while it lasts."""
    seen: list[str] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == _COMPILED:
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_each_stage_has_what_the_stage_of_jax_has() -> None:
    plain: Any = jax.jit(scaled, static_argnums=1)
    ours: Any = jitted()
    assert names(plain) <= names(ours)
    for stage in ("trace", "lower", "compile"):
        if stage == "trace":
            plain, ours = plain.trace(*ARGUMENTS, **NAMED), ours.trace(*ARGUMENTS, **NAMED)
        else:
            plain, ours = getattr(plain, stage)(), getattr(ours, stage)()
        assert names(plain) <= names(ours)
        for name in names(plain):
            getattr(ours, name)


def test_the_options_of_jax_are_all_there() -> None:
    """But for `device` and `backend`, which the mesh says, and JAX has deprecated."""
    missing = set(inspect.signature(jax.jit).parameters) - set(inspect.signature(spmdc.jit).parameters)
    assert missing - {"fun"} == {"device", "backend"}


def test_what_the_stages_tell_of_arguments_and_results_is_what_jax_tells() -> None:
    plain: Any = jax.jit(scaled, static_argnums=1, donate_argnums=0).lower(*ARGUMENTS, **NAMED)
    ours = jitted(donate_argnums=0).lower(*ARGUMENTS, **NAMED)
    pairs: Any = ((plain, ours), (plain.compile(), ours.compile()))
    for theirs, mine in pairs:
        assert theirs.in_tree == mine.in_tree
        assert theirs.out_tree == mine.out_tree
        assert theirs.args_info == mine.args_info
        assert theirs.in_avals == mine.in_avals
        assert theirs.donate_argnums == mine.donate_argnums == (0,)
        shapes = [[(i.shape, i.dtype) for i in jax.tree.leaves(s.out_info)] for s in (theirs, mine)]
        assert shapes[0] == shapes[1]
    compiled = ours.compile()
    assert compiled.input_shardings[0][0] == lying("x", "y")
    assert compiled.output_shardings["sum"].is_equivalent_to(lying("x", "y"), 2)
    assert compiled.out_info["sum"].sharding == compiled.output_shardings["sum"]
    structure: Any = jax.tree.structure
    assert structure(compiled.input_formats) == structure((ARGUMENTS[:1], NAMED))
    assert "func.func" in str(ours.compiler_ir())
    assert ours.as_text("hlo").startswith("HloModule")
    assert "tensor<2x4xf32>" in ours.as_text()
    assert "loc(" in ours.as_text(debug_info=True)
    assert ours.cost_analysis()["flops"] > 0
    assert compiled.cost_analysis() is not None
    assert str(jitted().trace(*ARGUMENTS, **NAMED).jaxpr) == str(
        jax.jit(scaled, static_argnums=1).trace(*ARGUMENTS, **NAMED).jaxpr
    )


def test_compile_compiles_what_calls_run_and_they_compile_nothing() -> None:
    a = jax.device_put(A, lying("x", "y"))
    function = spmdc.jit(lambda a: a * 2, mesh=MESH, in_shardings=P("x", "y"), donate_argnums=0)
    lowered = function.lower(a)
    with counted_compiles() as seen:
        compiled = lowered.compile()
    assert len(seen) == 1
    assert compiled.memory_analysis().alias_size_in_bytes == A.nbytes // 8
    with counted_compiles() as seen:
        once = compiled(a)
        twice = function(once)
        assert lowered.compile().runtime_executable() is compiled.runtime_executable()
    assert not seen
    assert a.is_deleted()
    assert once.is_deleted()
    for call in (function, compiled):
        with pytest.raises(RuntimeError, match="deleted"):
            call(a)
    np.testing.assert_array_equal(twice, A * 4)


def test_a_step_whose_results_are_fed_back_is_compiled_once() -> None:
    def step(state: Any, x: Any) -> Any:
        return {"w": state["w"] - 0.5 * x.sum(), "count": state["count"] + 1}, x @ state["w"]

    function = spmdc.jit(step, mesh=MESH, in_shardings=({"w": P("x", "y"), "count": P()}, P("y")))
    state: Any = {"w": A, "count": 0}
    with counted_compiles() as seen:
        for _ in range(3):
            state, _ = function(state, A)
        # The count is weakly typed at first, as a number of Python's, and stays so.
        function(jax.device_put(state, lying()), A)
    assert len(seen) == 1
    assert int(state["count"]) == 3


def test_dims_that_a_sharding_leaves_whole_may_be_named_or_not() -> None:
    a = jax.device_put(A, jax.sharding.NamedSharding(MESH, P("x", None)))
    function = spmdc.jit(lambda a: a + 1, mesh=MESH)
    with counted_compiles() as seen:
        for _ in range(3):
            a = function(a)
    assert len(function.specialisations) == len(seen) == 1


def test_an_array_of_64_bits_is_taken_as_one_of_32_where_jax_has_no_more() -> None:
    with jax.enable_x64(True):
        wide = [jnp.arange(8.0), jnp.arange(8), jax.device_put(jnp.arange(8.0), lying("x"))]
    for x in wide:
        found, expected = (jit(lambda a: a + 1)(x) for jit in (functools.partial(spmdc.jit, mesh=MESH), jax.jit))
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["int4", "uint4", "float8_e5m2", "bfloat16"])
def test_an_uneven_result_of_short_elements(dtype: str) -> None:
    x = jnp.arange(6).astype(dtype)
    found = spmdc.jit(lambda a: a, mesh=MESH, in_shardings=P("x"), out_shardings=P("x"))(x)
    np.testing.assert_array_equal(found.astype("f4"), x.astype("f4"))


def test_a_result_that_jax_cannot_hold_split_is_gathered_in_the_one_program() -> None:
    """Rows that do not divide; parts of a sum; and words of keys, which no sharding of the keys splits."""
    keys = jax.random.split(jax.random.key(0), 8)

    def function(a: Any, b: Any, keys: Any) -> Any:
        return a + 1, b.sum(0), keys

    shardings = P("x"), P("x"), P("x", "y")
    ours = spmdc.jit(
        function, mesh=MESH, in_shardings=shardings, out_shardings=(P("x"), P(unreduced={"x"}), P("x", "y"))
    )
    arguments = A[:6], A, keys
    with counted_compiles() as seen:
        compiled = ours.lower(*arguments).compile()
    assert len(seen) == 1
    partitioned = compiled.partitioned
    assert [c.kind for c in partitioned.collectives()] == ["all_gather", "all_gather", "all_reduce"]
    assert received_in_hlo(compiled.as_text()) == partitioned.received_bytes()
    assert [s.spec for s in compiled.output_shardings] == [P(), P(), P("x")]
    for g, e in zip(ours(*arguments), function(*arguments), strict=True):
        assert bool(jnp.all(g == e))


def test_the_context_of_a_call_compiles_nothing_again() -> None:
    a = jax.device_put(A, lying("x"))
    function = spmdc.jit(lambda a: a + 1, mesh=MESH, in_shardings=P("x"))
    function(a)
    with counted_compiles() as seen, jax.set_mesh(MESH):
        function(a)
    assert not seen


def test_arguments_that_are_elsewhere_or_on_the_host_are_put_where_they_belong() -> None:
    function = spmdc.jit(lambda a, b: a @ b, mesh=MESH, in_shardings=(P("x"), P(None, "y")))
    for a in (A, jax.device_put(A, lying("y", "x")), jnp.asarray(A), jax.device_put(A, lying("x"))):
        np.testing.assert_allclose(function(a, A), A @ A, rtol=1e-5)


def test_uneven_and_even_arguments_in_one_call() -> None:
    def both(a: Any, b: Any, key: Any) -> Any:
        return a + 1, b * 2, jax.random.uniform(key, a.shape), key

    function = spmdc.jit(
        both, mesh={"x": 4}, in_shardings=(P("x"), P("x"), P()), out_shardings=(P("x"), None, P(), P())
    )
    odd, key = A[:5], jax.random.key(1)
    got, expected = function(odd, A, key), jax.jit(both)(odd, A, key)
    for g, e in zip(got[:3], expected[:3], strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-6)
    assert got[3] == key
    compiled = function.lower(odd, A, key).compile()
    assert compiled.out_info[0].shape == (5, 8)
    with counted_compiles() as seen:
        compiled(odd, A, key)
    assert not seen


@pytest.mark.parametrize("number", [1, 2.5, True, 1j, np.float64(2), np.int64(3), np.float16(1)], ids=repr)
def test_values_on_the_host_are_taken_as_jax_takes_them(number: Any) -> None:
    def mixed(a: Any, b: Any) -> Any:
        return a + b, b

    ours, plain = spmdc.jit(mixed, mesh={"x": 8}, in_shardings=(P("x"), P())), jax.jit(mixed)
    for array in (np.ones(8), np.arange(8), np.arange(8) > 3, np.ones(8, jnp.bfloat16), np.arange(8, dtype=np.uint8)):
        for g, e in zip(ours(array, number), plain(array, number), strict=True):
            assert (g.dtype, g.weak_type) == (e.dtype, e.weak_type)
            np.testing.assert_array_equal(g, e)


def test_arguments_of_the_first_call_are_not_kept() -> None:
    function = spmdc.jit(lambda a: a * 2, mesh=MESH, in_shardings=P("x"))
    a = jax.device_put(A, lying("x"))
    seen = weakref.ref(a)
    np.testing.assert_array_equal(function(a), A * 2)
    del a
    gc.collect()
    assert seen() is None


def test_the_collector_of_garbage_rests_while_the_function_is_traced_and_works_behind() -> None:
    found: list[bool] = []

    def traced(a: Any) -> Any:
        found.append(gc.isenabled())
        return a + 1

    spmdc.jit(traced, mesh=MESH, in_shardings=P("x")).trace(A)
    assert found == [False]
    assert gc.isenabled()


def test_without_jit_the_function_itself_runs() -> None:
    seen: list[Any] = []

    def increment(a: Any) -> Any:
        seen.append(a)
        return a + 1

    function = spmdc.jit(increment, mesh={"x": 8})
    with jax.disable_jit():
        np.testing.assert_array_equal(function(A), A + 1)
    assert isinstance(seen[0], np.ndarray)
    np.testing.assert_array_equal(function(A), A + 1)


def test_unused_arguments_are_kept_where_asked_for() -> None:
    kept = [
        spmdc.jit(lambda a, b: a, mesh={"x": 8}, in_shardings=P("x"), keep_unused=keep).lower(A, A).compile()
        for keep in (False, True)
    ]
    sizes = [c.memory_analysis().argument_size_in_bytes for c in kept]
    assert sizes == [A.nbytes // 8, 2 * A.nbytes // 8]


def test_options_for_the_compiler_reach_it() -> None:
    function = spmdc.jit(jnp.sin, mesh={"x": 8}, compiler_options={"xla_no_such_option": 1})
    with pytest.raises(Exception, match="xla_no_such_option"):
        function(A)
    lowered = spmdc.jit(jnp.sin, mesh={"x": 8}).lower(A)
    with pytest.raises(Exception, match="xla_no_such_option"):
        lowered.compile({"xla_no_such_option": 1})
    np.testing.assert_allclose(lowered.compile({"xla_embed_ir_in_executable": True})(A), np.sin(A), rtol=1e-5)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_shapes_and_a_mesh_without_devices_go_through_all_stages(axis_type: AxisType) -> None:
    mesh = AbstractMesh((4, 2), ("x", "y"), axis_types=(axis_type,) * 2)
    lowered = spmdc.jit(jnp.sin, mesh=mesh, in_shardings=P("x", "y")).lower(struct((8, 8), jnp.float32))
    compiled = lowered.compile()
    assert "num_partitions=8" in compiled.as_text()
    result = compiled(A)
    assert result.sharding.mesh.axis_types == mesh.axis_types
    np.testing.assert_allclose(result, np.sin(A), rtol=1e-5)


def test_devices_that_are_only_compiled_for_are_sent_nothing() -> None:
    """A topology's devices hold no data where there is no such hardware. The CPU has that of the devices there are."""
    mesh = topologies.make_mesh(topologies.get_attached_topology("cpu"), (4, 2), ("x", "y"))
    table = np.arange(60, dtype=np.float32).reshape(10, 6)

    def function(a: Any, b: Any) -> Any:
        drawn = jax.random.bits(jax.random.key(3), (8,))
        return jnp.sum(a @ b, axis=0), jnp.sort(a, axis=0)[:3] + table[:3], drawn

    shapes = struct((10, 6), jnp.float32), struct((6, 8), jnp.float32)
    specs = P("x"), NamedSharding(mesh, P(None, "y"))
    with jax.transfer_guard("disallow_explicit"):
        compiled = spmdc.jit(function, mesh=mesh, in_shardings=specs).lower(*shapes).compile()
    assert "num_partitions=8" in compiled.as_text()
    assert compiled.memory_analysis().argument_size_in_bytes > 0
    assert all(set(sharding.device_set) == set(mesh.devices.flat) for sharding in compiled.output_shardings)
    given = table, np.ones((6, 8), np.float32)
    for got, want in zip(compiled(*given), function(*given), strict=True):
        np.testing.assert_array_equal(got, want)


def test_it_is_exported_as_a_function_of_jax_is() -> None:
    function = spmdc.jit(lambda a, b: {"sum": a["x"] + b}, mesh=MESH, in_shardings=P("x", "y"))
    exported: Any = jax.export.export(function)({"x": struct((8, 8), jnp.float32)}, struct((8, 8), jnp.float32))
    assert exported.nr_devices == 8
    a = jax.device_put(A, lying("x", "y"))
    with jax.set_mesh(MESH):
        np.testing.assert_array_equal(exported.call({"x": a}, a)["sum"], A + A)


def test_what_was_exported_with_symbolic_sizes_is_partitioned_for_those_of_its_arguments() -> None:
    def sums(a: Any) -> Any:
        return jax.lax.scan(lambda total, row: (total + row, total[0]), jnp.zeros(a.shape[1]), a)

    sizes = jax.export.symbolic_args_specs((A,), "rows, columns")
    exported: Any = jax.export.export(jax.jit(sums))(*sizes)
    called = spmdc.jit(lambda a: exported.call(a), mesh=MESH, in_shardings=P(None, "y"))
    of_text = spmdc.evaluate(spmdc.from_mlir(jax.jit(exported.call).lower(A).as_text()), A)
    for found in (called(A), of_text):
        for got, want in zip(found, sums(A), strict=True):
            np.testing.assert_array_equal(got, want)


def test_what_was_exported_for_as_many_devices_is_partitioned_over_the_mesh() -> None:
    exported: Any = jax.export.export(jax.jit(lambda a: a + a.max(), in_shardings=lying("x", "y")))(A)
    called = spmdc.jit(lambda a: exported.call(a), mesh=MESH)
    np.testing.assert_array_equal(called(A), A + A.max())
    assert [c.axes for c in called.partitioned(A).collectives()] == ["x, y"]
    with pytest.raises(ValueError, match="exported for 8 devices"):
        spmdc.jit(lambda a: exported.call(a), mesh={"x": 2}).lower(A)


def test_what_is_compiled_ahead_of_time_is_not_traced() -> None:
    compiled = spmdc.jit(jnp.sin, mesh={"x": 8}).lower(A).compile()
    with pytest.raises(TypeError, match="ahead of time"):
        jax.jit(compiled)(A)


class Counted:
    """A tree of JAX's that counts how often it is taken apart."""

    flattened = 0

    def __init__(self, x: Any) -> None:
        self.x = x


def taken_apart(tree: Counted) -> tuple[tuple[Any], None]:
    Counted.flattened += 1
    return (tree.x,), None


jax.tree_util.register_pytree_node(Counted, taken_apart, lambda _, children: Counted(*children))


def test_a_call_takes_the_trees_of_its_arguments_apart_once() -> None:
    function = spmdc.jit(lambda tree: tree.x + 1, mesh=MESH, in_shardings=P("x"))
    compiled = function.lower(Counted(A)).compile()
    given = Counted(jax.device_put(A, lying("x")))
    for call in (function, compiled):
        call(given)
        before = Counted.flattened
        np.testing.assert_array_equal(call(given), A + 1)
        assert Counted.flattened == before + 1


def test_what_is_compiled_looks_at_each_call_whatever_came_before() -> None:
    compiled = spmdc.jit(lambda tree: tree["a"] * 2, mesh=MESH, in_shardings=P("x")).lower({"a": A}).compile()
    right, elsewhere = jax.device_put(A, lying("x")), jax.device_put(A, lying("y", "x"))
    for given in (right, right, elsewhere, right, A, jnp.asarray(A), right):
        np.testing.assert_array_equal(compiled({"a": given}), A * 2)
        with pytest.raises(TypeError, match="compiled for arguments"):
            compiled({"b": right})
        with pytest.raises(TypeError, match="compiled for is float32"):
            compiled({"a": jnp.arange(64).reshape(8, 8)})


def test_what_is_lowered_for_shapes_takes_arrays_where_their_shardings_say() -> None:
    shapes = struct((8, 8), np.float32, sharding=lying("x")), struct((8, 8), np.float32)
    for jitted in (spmdc.jit(jnp.matmul), spmdc.jit(jnp.matmul, mesh={"x": 4, "y": 2})):
        compiled = jitted.lower(*shapes).compile()
        places = compiled.input_shardings[0]
        assert [place.spec for place in places] == [P("x"), P()]
        np.testing.assert_allclose(compiled(jax.device_put(A, places[0]), A), A @ A, rtol=1e-5)


def test_arguments_are_named_by_their_paths() -> None:
    """In HLO as `jax.jit` names them; in programs, those of transformed functions too, by what tells them apart."""

    def layer(params: Any, *inputs: Any) -> Any:
        return jnp.sum(inputs[0] @ params["layers"][0]["kernel"] + params["bias"])

    arguments = {"layers": [{"kernel": A}], "bias": A[0]}, A
    paths = ("params['bias']", "params['layers'][0]['kernel']", "inputs[0]")
    ours = spmdc.jit(layer, mesh=MESH, in_shardings=(None, P("x")))
    for jitted in (jax.jit(layer), ours):
        text = str(jitted.lower(*arguments).compile().as_text()).replace("\\'", "'")
        assert all(f'op_name="{path}"' in text for path in paths)
    part = ours.specialisations[0].part
    forward, backward = part.linearised((0, 1, 2))[0], part.batched(2, (0, 0, 0), None, None)[0]
    for made in (part, forward, backward):
        assert [p.name for p in made.partitioned.program.main.params] == ["bias", "layers_0_kernel", "inputs_0"]


def test_a_function_of_elements_is_lowered_once_for_all_calls() -> None:
    """Those of one form: on scalars, and mapped over elements."""

    def stepped(x: Any, times: int) -> Any:
        for _ in range(times):
            x = jax.lax.nextafter(x, jnp.ones_like(x))
        return x, jax.lax.nextafter(x[0], x[1])

    x = np.linspace(-1, 2, 8, dtype=np.float32)
    options: Any = {"mesh": {"x": 8}, "in_shardings": P("x")}
    lowered = [spmdc.jit(functools.partial(stepped, times=times), **options).lower(x) for times in (3, 40)]
    few, many = (str(one.as_text()).count("stablehlo.bitcast_convert") for one in lowered)
    assert few == many
    for found, expected in zip(lowered[1].compile()(x), jax.jit(functools.partial(stepped, times=40))(x), strict=True):
        np.testing.assert_array_equal(found, expected)
