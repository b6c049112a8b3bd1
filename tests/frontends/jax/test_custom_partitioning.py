"""Functions with jax.custom_partitioning: what their rules say, and what is done where these say too little."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import custom_partitioning as module

import spmdc
from ir.ops.opaque import calls_of_functions
from spmdc import custom_calls
from spmdc.frontends.spmd import print_program
from spmdc.frontends.stablehlo.ops.opaque import CUSTOM_PARTITIONING

P: Any = jax.sharding.PartitionSpec
by_hand: Any = module
ArrayMapping, CompoundFactor, SdyShardingRule = by_hand.ArrayMapping, by_hand.CompoundFactor, by_hand.SdyShardingRule
MESH = {"x": 4, "y": 2}
ROWS = np.arange(48, dtype=np.float32).reshape(8, 6) % 7


def partitioned(function: Callable[..., Any], rule: Any, static: tuple[int, ...] = (), **said: Any) -> Any:
    """The function, which each device is to call for its part."""

    def partition(*given: Any) -> Any:
        *fixed, mesh, operands, results = given
        assert len(mesh.devices.flat) == mesh.size
        own = jax.tree.map(lambda s: s.sharding, results), jax.tree.map(lambda s: s.sharding, operands)
        return mesh, lambda *arrays: function(*arrays, *fixed), *own

    made: Any = by_hand.custom_partitioning(function, static_argnums=static)
    made.def_partition(partition, sharding_rule=rule, **said)
    return made


def in_turns(x: Any, w: Any) -> Any:
    """What only a loop computes, whose start JAX takes for the same on all devices."""
    return jax.lax.fori_loop(0, 3, lambda i, total: total + jnp.flip(x, 1) @ w * i, jnp.zeros((x.shape[0], w.shape[1])))


def halves(x: Any) -> tuple[Any, Any]:
    return x[:, ::2], x[:, 1::2].sum(1)


def scaled(x: dict[str, Any], factor: int) -> dict[str, Any]:
    return {"out": x["in"] * factor}


def pairs(x: Any) -> Any:
    return x.reshape(-1, 2, *x.shape[1:])[:, ::-1].reshape(x.shape)


FUNCTIONS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "i j, j k -> i k": (
        lambda x: partitioned(in_turns, "b i, i j -> b j")(x, jnp.ones((6, 4), x.dtype)),
        "i j, j k -> i k",
    ),
    "a factor of dims of several sizes": (
        lambda x: partitioned(halves, "b i -> b i, b")(x),
        "i d0_1 -> i d1_1, i {d0_1: need_replication, d1_1: need_replication}",
    ),
    "a tree, a static argument, and a rule that is asked for": (
        lambda x: partitioned(scaled, lambda factor, mesh, given, made: "... -> ...", (1,))({"in": x}, 3)["out"],
        "i j -> i j",
    ),
    "compound factors with sizes": (
        lambda x: partitioned(
            pairs,
            SdyShardingRule(
                (ArrayMapping(CompoundFactor("b", "two"), "j"),), (ArrayMapping(CompoundFactor("b", "two"), "j"),),
                need_replication_factors=("j",), b=4, two=2,
            ),
        )(x),
        "(i j) k -> (i j) k {i=4, j=2, k: need_replication}",
    ),
    "leading dims": (
        lambda x: partitioned(jnp.cumsum, SdyShardingRule((ArrayMapping(by_hand.BATCHING),), (ArrayMapping("i"),)))(x)
        if x.ndim == 1
        else partitioned(lambda x: jnp.sort(x, 1), "... i -> ... i", permutation_factors=("i",))(x),
        "i j -> i j {j: need_replication}",
    ),
}  # fmt: skip


def all_of_them(x: Any) -> list[Any]:
    return [jax.tree.leaves(function(x)) for function, _ in FUNCTIONS.values()]


def test_each_device_computes_what_the_rule_says_it_can() -> None:
    program = spmdc.from_jax(all_of_them, ROWS, mesh=MESH, in_shardings=(P("x"),))
    assert [op.attrs["rule"] for _, op in calls_of_functions(program).values()] == [r for _, r in FUNCTIONS.values()]
    found = spmdc.partition(program)
    assert not found.collectives()
    want = list(map(np.asarray, jax.tree.leaves(jax.jit(all_of_them)(ROWS))))
    for results in (found.simulate(ROWS), found.to_jax()(ROWS), spmdc.evaluate(program, ROWS)):
        for ours, theirs in zip(results, want, strict=True):
            np.testing.assert_array_equal(np.asarray(ours), theirs)


def test_a_dim_that_the_rule_says_is_whole_is_made_whole() -> None:
    function = partitioned(lambda x: jnp.sort(x, 1), "b i -> b i", need_replication_factors=("i",))
    fast = spmdc.jit(function, mesh=MESH, in_shardings=(P(None, "y"),))
    np.testing.assert_array_equal(np.asarray(fast(ROWS)), np.sort(ROWS, 1))
    found = spmdc.partition(spmdc.from_jax(function, ROWS, mesh={"y": 2}, in_shardings=(P(None, "y"),)))
    assert [c.kind for c in found.collectives()] == ["all_gather"]
    assert [d.code for d in found.warnings] == ["W001"]


def reducing(function: Callable[[Any, Any], Any], rule: str, number: int = 0) -> Any:
    """The function of arrays and the axes that split the last dim of one of them, over which it reduces."""

    def partition(mesh: Any, operands: Any, results: Any) -> Any:
        axes = [a for a in operands[number].sharding.spec[-1:] if a]
        own = jax.tree.map(lambda s: s.sharding, results), tuple(s.sharding for s in operands)
        return mesh, lambda *arrays: function(arrays, axes), *own

    made: Any = by_hand.custom_partitioning(lambda *arrays: function(arrays, []))
    made.def_partition(partition, sharding_rule=rule, reduction_factors=("k",))
    return made


def over(reduce: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    return lambda x, axes: reduce(x, tuple(axes)) if axes else x


REDUCING: dict[str, tuple[Any, str]] = {
    "a sum": (reducing(lambda xs, axes: over(jax.lax.psum)((2 ** xs[0]).sum(1), axes), "i k -> i"), "sum"),
    "an extreme": (reducing(lambda xs, axes: over(jax.lax.pmax)(xs[0].max(1), axes), "i k -> i"), "max"),
    "two results": (
        reducing(lambda xs, axes: over(jax.lax.psum)((xs[0].sum(1), (xs[0] ** 2).sum(1)), axes), "i k -> i, i"),
        "sum",
    ),
}


@pytest.mark.parametrize("name", REDUCING)
def test_a_function_gives_its_parts_and_the_partitioner_reduces_them(name: str) -> None:
    function, kind = REDUCING[name]
    x = np.tile(ROWS[:, [0, 1, 2, 3, 4, 5, 0, 1]], (32, 16))
    program = spmdc.from_jax(function, x, mesh=MESH, in_shardings=(P("y", "x"),))
    ((_, op),) = calls_of_functions(program).values()
    assert f"{{j: reduction({kind})}}" in str(op.attrs["rule"])
    found = spmdc.partition(program)
    assert {c.kind for c in found.collectives()} == {"all_reduce"}
    want = list(map(np.asarray, jax.tree.leaves(jax.jit(function)(x))))
    fast = spmdc.jit(function, mesh=MESH, in_shardings=(P("y", "x"),))
    for results in (found.simulate(x), found.to_jax()(x), spmdc.evaluate(program, x), jax.tree.leaves(fast(x))):
        for ours, theirs in zip(results, want, strict=True):
            np.testing.assert_array_equal(np.asarray(ours), theirs)


def mean(xs: Any, axes: Any) -> Any:
    return over(jax.lax.psum)(xs[0].sum(1), axes) / 4


@pytest.mark.parametrize(
    "function",
    [
        partitioned(lambda x: x.max(1), "i k -> i", reduction_factors=("k",)),
        reducing(mean, "i k -> i"),
        reducing(
            lambda xs, axes: (over(jax.lax.psum)(xs[0].sum(1), axes), xs[0].shape[0] + xs[0][:, :1] * 0),
            "i k -> i, i l",
        ),
    ],
)
def test_a_function_that_does_more_than_to_reduce_in_the_end_is_imported_as_what_it_computes(function: Any) -> None:
    """One that reduces nothing is for whole arrays, whatever its rule says."""
    program = spmdc.from_jax(function, ROWS, mesh=MESH, in_shardings=(P("x", "y"),))
    assert not calls_of_functions(program)
    want = jax.tree.leaves(jax.jit(function)(ROWS))
    for ours, theirs in zip(spmdc.partition(program).simulate(ROWS), want, strict=True):
        np.testing.assert_array_equal(ours, np.asarray(theirs))


def test_where_some_axes_are_manual_the_others_split_what_the_rule_says() -> None:
    mesh: Any = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    ordered = partitioned(lambda x: jnp.sort(x, 1), "b i -> b i", need_replication_factors=("i",))
    largest = partitioned(lambda x: x.max(1), "i k -> i", reduction_factors=("k",))
    regions: Any = jax.shard_map(
        lambda x: (ordered(x), largest(x)), mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"}
    )
    found = spmdc.jit(regions, mesh=mesh)(ROWS)
    np.testing.assert_array_equal(np.asarray(found[0]), np.sort(ROWS, 1))
    np.testing.assert_array_equal(np.asarray(found[1]), ROWS.max(1))


def test_a_function_that_insists_on_a_sharding_of_its_own_is_imported_as_what_it_computes() -> None:
    function: Any = by_hand.custom_partitioning(lambda x: x + 1)

    def partition(mesh: Any, operands: Any, result: Any) -> Any:
        split = jax.sharding.NamedSharding(mesh, P("x", None))
        return mesh, lambda x: x + jax.lax.axis_size("x") - 3, split, (split,)

    function.def_partition(partition, sharding_rule="i j -> i j")
    program = spmdc.from_jax(function, ROWS, mesh=MESH)
    assert not calls_of_functions(program)
    np.testing.assert_array_equal(spmdc.evaluate(program, ROWS)[0], ROWS + 1)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x.reshape(8, 3, 2).sum(2), "called with float32[2, 6]: cannot reshape"),
        (lambda x: x[:1].repeat(8, 0)[:, :3], "it returns float32[8, 3], and the program takes float32[2, 3]"),
    ],
)
def test_a_rule_that_is_not_true_is_reported(function: Callable[[Any], Any], why: str) -> None:
    lying = partitioned(function, "b i -> b j")
    found = spmdc.partition(spmdc.from_jax(lying, ROWS, mesh=MESH, in_shardings=(P("x"),)))
    for run in (found.simulate, found.to_jax(), spmdc.jit(lying, mesh=MESH, in_shardings=(P("x"),))):
        with pytest.raises(spmdc.SpmdcError) as caught:
            run(ROWS)
        (diagnostic,) = caught.value.diagnostics
        assert diagnostic.code == "E513"
        assert why in diagnostic.message
        assert diagnostic.span is not None


def test_a_users_own_rule_goes_before_the_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(custom_calls.RULES, "halves", "b i -> b j, b {j: need_replication}")
    program = spmdc.from_jax(partitioned(halves, "b i -> b j, c"), ROWS, mesh=MESH, in_shardings=(P("x"),))
    ((_, op),) = calls_of_functions(program).values()
    assert op.attrs["rule"] == "b i -> b j, b {j: need_replication}"


def test_a_module_that_is_read_from_text_does_not_hold_the_function() -> None:
    with pytest.raises(spmdc.SpmdcError) as caught:
        spmdc.from_mlir(
            "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n"
            f"  %0 = stablehlo.custom_call @{CUSTOM_PARTITIONING}(%a) : (tensor<4xf32>) -> tensor<4xf32>\n"
            "  return %0 : tensor<4xf32>\n}"
        )
    assert [d.code for d in caught.value.diagnostics] == ["E704"]


def test_a_call_in_a_text_is_of_what_is_registered_under_its_name() -> None:
    program = spmdc.parse(
        "mesh (x=4)\ndef main(a: f32[8@x, 6]) -> (r: f32[8]) {\n"
        '  return opaque(a, target="f", types=[f32[8]], rule="b i -> b", function=row_sums)\n}'
    )
    assert "function=row_sums" in print_program(spmdc.parse(print_program(program)))
    found = spmdc.partition(program)
    with pytest.raises(spmdc.SpmdcError, match="no function is registered"):
        found.to_jax()(ROWS)
    spmdc.register_callback("row_sums", lambda x: (x.sum(1),))
    np.testing.assert_array_equal(np.asarray(found.to_jax()(ROWS)[0]), ROWS.sum(1))
    assert not found.collectives()
