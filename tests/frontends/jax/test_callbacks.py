"""Callbacks into Python: through spmdc.jit they happen as often, in the order and with the values as under jax.jit."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from failed_callbacks import forget_failures
from jax.experimental import checkify, io_callback
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import spmdc
from ir.ops.host import host_function
from ir.spelling.printer import print_program
from lowering.jax import ensure_devices

JAX: Any = jax
P: Any = PartitionSpec
SHAPE: Any = jax.ShapeDtypeStruct
X = np.arange(32, dtype=np.float32).reshape(8, 4)
CALLS: list[tuple[Any, ...]] = []


@pytest.fixture(autouse=True)
def no_failure_is_left() -> Iterator[None]:
    yield
    forget_failures()


def note(tag: str) -> Callable[..., None]:
    """A function that writes down what it is called with."""
    return lambda *arrays: CALLS.append((tag, *(np.asarray(a).tolist() for a in arrays)))


def doubled(a: Any) -> Any:
    note("doubled")(a)
    return np.asarray(a) * 2


def devices() -> Mesh:
    found = ensure_devices(8)
    return Mesh(np.array(found[:8]).reshape(4, 2), ("x", "y"))


def by_hand(f: Callable[[Any], Any], spec: Any, **options: Any) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        return jax.shard_map(f, mesh=devices(), in_specs=spec, out_specs=spec, **options)(x)

    return run


def two_in_order(x: Any) -> Any:
    io_callback(note("first"), None, x[0, 0], ordered=True)
    io_callback(note("second"), None, x[1, 0], ordered=True)
    return x


def in_a_loop_in_a_choice(x: Any) -> Any:
    def turn(i: Any, c: Any) -> Any:
        io_callback(note("turn"), None, i, ordered=True)
        return c + io_callback(doubled, SHAPE((8, 4), "f4"), c, ordered=True)

    return jax.lax.cond(x[0, 0] > -1, lambda: jax.lax.fori_loop(0, 3, turn, x), lambda: x)


def in_a_condition(x: Any) -> Any:
    def goes_on(v: Any) -> Any:
        jax.debug.callback(note("asked"), v[0, 0])
        return v[0, 0] < 3

    return jax.lax.while_loop(goes_on, lambda v: v + 1, x)


def in_functions(x: Any) -> Any:
    inner = jax.jit(lambda y: (jax.debug.callback(note("inner"), y[0, 0]), y + 1)[1])
    return inner(inner(x))


CASES: dict[str, Callable[[Any], Any]] = {
    "debug callback of a part": lambda x: (jax.debug.callback(note("row"), x[0]), x + 1)[1],
    "debug callback and no results": lambda x: jax.debug.callback(note("all"), x),
    "pure": lambda x: jax.pure_callback(doubled, SHAPE((8, 4), "f4"), x) + 1,
    "io": lambda x: io_callback(doubled, SHAPE((8, 4), "f4"), x) + 1,
    "several results": lambda x: jax.pure_callback(
        lambda a: (np.asarray(a) > 3, -np.zeros(3, "f4"), np.int32(7)),
        (SHAPE((8, 4), "?"), SHAPE((3,), "f4"), SHAPE((), "i4")),
        x,
    ),
    "two in order": two_in_order,
    "in a loop in a choice": in_a_loop_in_a_choice,
    "in a condition": in_a_condition,
    "in functions": in_functions,
    "in a scan": lambda x: jax.lax.scan(lambda c, r: (jax.debug.callback(note("row"), r), (c + r, r))[1], x[0], x),
    "mapped one by one": lambda x: jax.vmap(
        lambda r: jax.pure_callback(doubled, SHAPE((4,), "f4"), r, vmap_method="sequential")
    )(x),
    "mapped at once": lambda x: jax.vmap(
        lambda r: jax.pure_callback(doubled, SHAPE((4,), "f4"), r, vmap_method="broadcast_all")
    )(x),
    "under a gradient": jax.grad(lambda x: (jax.debug.callback(note("sum"), x.sum()), (x**2).sum())[1]),
}
UNORDERED: dict[str, Callable[[Any], Any]] = {
    "by hand": by_hand(lambda x: (jax.debug.callback(note("shard"), x), x + 1)[1], P("x", "y")),
    "by hand with results": by_hand(lambda x: jax.pure_callback(doubled, SHAPE((2, 2), "f4"), x), P("x", "y")),
    "by hand along one axis": by_hand(
        lambda x: (jax.debug.callback(note("shard"), x), x + 1)[1], P("x"), axis_names={"x"}
    ),
    "for each part": lambda x: (jax.debug.callback(note("part"), x, partitioned=True), x + 1)[1],
}


def outcome(run: Callable[[], Any]) -> tuple[list[Any], list[tuple[Any, ...]]]:
    """The results' bytes, and the calls."""
    CALLS.clear()
    results = [np.asarray(r).tobytes() for r in jax.tree.leaves(run())]
    JAX.effects_barrier()
    return results, list(CALLS)


@pytest.mark.parametrize("what", [*CASES, *UNORDERED])
def test_callbacks_happen_as_under_jax_jit_on_a_mesh(what: str) -> None:
    function, mesh = CASES.get(what) or UNORDERED[what], devices()
    theirs = outcome(lambda: jax.jit(function, in_shardings=NamedSharding(mesh, P("x", "y")))(X))
    jitted = spmdc.jit(function, mesh=mesh, in_shardings=P("x", "y"))
    ours = outcome(lambda: jitted(X))
    simulated = outcome(lambda: jitted.partitioned(X).simulate(X))
    assert theirs[1] or what == "several results"
    for found in (ours, simulated):
        assert found[0] == theirs[0]
        assert (found[1] if what in CASES else sorted(found[1])) == (theirs[1] if what in CASES else sorted(theirs[1]))


def test_a_function_that_uses_parts_of_axes_calls_back() -> None:
    mesh = Mesh(np.array(ensure_devices(8), dtype=object).reshape(2, 4), ("x", "y"))
    jitted: Any = spmdc.jit(two_in_order, mesh=mesh, in_shardings=P("y"), out_shardings=P("x"))
    found = outcome(lambda: jitted(X))
    assert "y:(1)2" in jitted.partitioned(X).text()
    assert found == outcome(lambda: jax.jit(two_in_order)(X))
    assert jitted(X).sharding == NamedSharding(mesh, P("x"))


def test_prints_in_order_are_printed_in_order() -> None:
    """Under jax.jit there are none on several devices."""

    def prints(x: Any) -> Any:
        for i in range(3):
            jax.debug.print("row {i}: {}", x[i], i=i, ordered=True)
        return x

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        JAX.block_until_ready(spmdc.jit(prints, mesh=devices(), in_shardings=P("x", "y"))(X))
        JAX.effects_barrier()
    assert out.getvalue().splitlines() == [f"row {i}: {X[i]}" for i in range(3)]


def refuses(a: Any) -> Any:
    if np.asarray(a).max() > 3:
        raise ValueError("a number is too large")
    return np.asarray(a)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (jax.pure_callback(refuses, SHAPE((8, 4), "f4"), x) + x).sum(),
        lambda x: (jax.debug.callback(refuses, x.sum()), jnp.cumsum(x, 0).sum())[1],
        by_hand(lambda x: jax.pure_callback(refuses, SHAPE((2, 2), "f4"), x) + JAX.lax.psum(x, "x"), P("x", "y")),
    ],
)
def test_an_error_in_python_is_raised_and_the_next_call_is_fine(function: Callable[[Any], Any]) -> None:
    jitted = spmdc.jit(function, mesh=devices(), in_shardings=P("x", "y"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="a number is too large"):
        JAX.block_until_ready(jitted(X))
    np.testing.assert_array_equal(jitted(np.zeros_like(X)), jax.jit(function)(np.zeros_like(X)))


@pytest.mark.parametrize("ordered", [True, False])
def test_elements_that_share_a_byte_reach_python_while_devices_wait_for_it(ordered: bool) -> None:
    """JAX's way of handing them on needs a thread of XLA's, of which those that wait leave none on a small machine."""
    dtypes: list[Any] = []

    def taken(x: Any) -> Any:
        dtypes.append(np.asarray(x).dtype)
        return np.asarray(x)

    def f(x: Any) -> Any:
        jax.debug.callback(taken, x)
        y = jax.pure_callback(taken, SHAPE(x.shape, x.dtype), x)
        z = io_callback(taken, SHAPE(x.shape, x.dtype), y, ordered=ordered)
        return z.astype("f4").sum()

    for dtype in ("int4", "uint2", "float4_e2m1fn"):
        x = np.array([0, 1, 1, 0, 3, 0, 1, 3]).astype(jnp.dtype(dtype))
        assert float(spmdc.jit(f, mesh={"x": 8}, in_shardings=P("x"))(x)) == 9.0
        JAX.effects_barrier()
        assert dtypes == [x.dtype] * 3
        dtypes.clear()


OUTSIDE: dict[str, Callable[[Callable[..., Any]], Callable[[Any], Any]]] = {
    "a jit that does not use the results": lambda f: jax.jit(lambda x: (f(x), x)[1]),
    "a gradient": lambda f: jax.grad(lambda x: f(x).sum()),
    "a loop": lambda f: jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, c: f(c), x)),
}


@pytest.mark.parametrize("around", OUTSIDE)
def test_callbacks_of_a_function_inside_of_another_happen_as_under_jax_jit(around: str) -> None:
    def function(x: Any) -> Any:
        jax.debug.callback(note("called"), x[0, 0])
        return x * x

    theirs = outcome(lambda: OUTSIDE[around](jax.jit(function))(X))
    ours = outcome(lambda: OUTSIDE[around](spmdc.jit(function, mesh=devices(), in_shardings=P("x", "y")))(X))
    assert ours == theirs
    assert ours[1]


NESTED: dict[str, Callable[[Callable[..., Any], Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "a function": lambda jit, f: jit(lambda x: f(f(x) + 1)),
    "a gradient": lambda jit, f: jit(jax.grad(lambda x: f(x).sum())),
    "a loop": lambda jit, f: jit(lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, 3)[0]),
    "a choice": lambda jit, f: jit(lambda x: jax.lax.cond(x[0, 0] > 3, lambda y: y, f, x)),
    "a jit": lambda jit, f: jax.jit(jit(lambda x: f(x) + 1)),
    "a map": lambda jit, f: lambda x: jax.vmap(jit(lambda y: f(y) + 1))(jnp.stack([x, -x])),
}


def debugged_in_order(x: Any) -> Any:
    jax.debug.callback(note("first"), x.sum(), ordered=True)
    jax.debug.callback(note("second"), x.max(), ordered=True)
    return x * 2


def io_in_order(x: Any) -> Any:
    return io_callback(doubled, SHAPE((8, 4), "f4"), two_in_order(jax.lax.stop_gradient(x)), ordered=True)


@pytest.mark.parametrize(
    ("function", "around"),
    [*[(debugged_in_order, name) for name in NESTED], *[(io_in_order, name) for name in NESTED if name != "a map"]],
)
def test_ordered_callbacks_of_a_function_inside_of_a_partitioned_one_happen_as_under_jax_jit(
    function: Callable[[Any], Any], around: str
) -> None:
    """Those of debugging and of input and output. JAX does not map the latter."""
    partitioned = functools.partial(spmdc.jit, mesh=devices())
    theirs = outcome(lambda: NESTED[around](jax.jit, jax.jit(function))(X))
    ours = outcome(lambda: NESTED[around](partitioned, partitioned(function, in_shardings=P("x", "y")))(X))
    assert ours == theirs
    assert ours[1]


def test_ordered_callbacks_of_a_function_of_scalars_happen_as_under_jax_jit() -> None:
    def function(x: Any) -> Any:
        io_callback(note("first"), None, x, ordered=True)
        io_callback(note("second"), None, x + 1, ordered=True)
        return x * 2

    jitted = spmdc.jit(function, mesh=devices())
    assert outcome(lambda: jax.jit(jitted)(1.0)) == outcome(lambda: jax.jit(function)(1.0))


@jax.custom_vjp
def noting_its_rules(x: Any) -> Any:
    return jnp.sin(x)


def _noted_forward(x: Any) -> Any:
    jax.debug.callback(note("forward"), x[0, 0])
    return jnp.sin(x), x


def _noted_backward(x: Any, g: Any) -> Any:
    jax.debug.callback(note("backward"), x[0, 0])
    return (g * jnp.cos(x),)


noting_its_rules.defvjp(_noted_forward, _noted_backward)


def test_the_rules_in_a_checkpoint_are_called_as_often_as_under_jax_jit() -> None:
    def loss(x: Any) -> Any:
        return jax.checkpoint(noting_its_rules)(x).sum()

    theirs = outcome(lambda: jax.grad(jax.jit(loss))(X))
    ours = outcome(lambda: jax.grad(spmdc.jit(loss, mesh=devices(), in_shardings=P("x", "y")))(X))
    assert ours[1] == theirs[1]
    assert [tag for tag, _ in ours[1]] == ["forward", "forward", "backward"]


def test_the_rule_of_a_gradient_that_nobody_uses_is_called_as_under_jax_jit() -> None:
    def loss(x: Any) -> Any:
        return noting_its_rules(x).sum()

    def called(jitted: Callable[[Any], Any]) -> list[tuple[Any, ...]]:
        return sorted(outcome(lambda: jax.jit(lambda x: (jax.grad(jitted)(x), x)[1])(X))[1])

    ours = called(spmdc.jit(loss, mesh=devices(), in_shardings=P("x", "y")))
    assert ours == called(jax.jit(loss))
    assert [tag for tag, _ in ours] == ["backward", "forward"]


def test_errors_that_checkify_carries_are_those_of_jax() -> None:
    def rooted(x: Any) -> Any:
        checkify.check(x.min() >= 0, "the least is {}", x.min())
        return jnp.sqrt(x) / x[:, :1]

    checked = checkify.checkify(rooted, errors=checkify.all_checks)
    jitted = spmdc.jit(checked, mesh=devices(), in_shardings=P("x", "y"))
    for x in (X + 1, X - 1, X):
        (ours, got), (theirs, expected) = jitted(x), jax.jit(checked)(x)
        assert ours.get() == theirs.get()
        np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))


def test_errors_of_a_function_that_checkify_stands_around_are_those_of_jax() -> None:
    def rooted(x: Any) -> Any:
        checkify.check(x.min() >= 0, "the least is {}", x.min())
        return jnp.sqrt(x) / x[:, :1]

    inside = spmdc.jit(rooted, mesh=devices(), in_shardings=P("x", "y"))
    ours, theirs = (checkify.checkify(f, errors=checkify.all_checks) for f in (inside, jax.jit(rooted)))
    for x in (X + 1, X - 1, X):
        (error, got), (expected_error, expected) = ours(x), theirs(x)
        assert error.get() == expected_error.get()
        np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))
    assert jax.jit(ours)(X - 1)[0].get() == theirs(X - 1)[0].get()


def test_the_warning_names_what_a_callback_gathers() -> None:
    partitioned = spmdc.jit(CASES["pure"], mesh={"x": 4, "y": 2}, in_shardings=P("x", "y")).partitioned(X)
    (warning,) = partitioned.warnings
    assert warning.code == "W001"
    assert warning.span is not None
    assert warning.span.source.name == __file__


def tells(tag: str, x: Any) -> Any:
    """`x`, whose sharding is written down."""
    jax.debug.inspect_array_sharding(x, callback=lambda sharding: CALLS.append((tag, sharding)))
    return x


SEEN: dict[str, Callable[[Any], Any]] = {
    "argument": lambda x: tells("x", x) + 1,
    "product": lambda x: tells("product", x @ x.T),
    "nobody uses it": lambda x: (tells("sum", x.sum(0)), x)[1],
    "in a loop": lambda x: jax.lax.fori_loop(0, 3, lambda _, c: tells("carried", c) * 2, x),
    "in a choice": lambda x: jax.lax.cond(x[0, 0] > 1, lambda v: tells("taken", v), lambda v: -v, x),
    "in functions": lambda x: jax.jit(lambda y: tells("inside", y) * 2)(x + 1),
    "mapped": lambda x: jax.vmap(lambda row: tells("row", row * 2))(x),
    "under a gradient": jax.grad(lambda x: (tells("squares", x**2)).sum()),
    "scalar": lambda x: x + tells("largest", x.max()),
}


@pytest.mark.parametrize("what", SEEN)
def test_functions_are_told_how_values_are_sharded_as_under_jax_jit(what: str) -> None:
    function, mesh = SEEN[what], devices()
    x = JAX.device_put(X, NamedSharding(mesh, P("x", "y")))
    theirs, ours = outcome(lambda: jax.jit(function)(x)), outcome(lambda: spmdc.jit(function)(x))
    assert len(theirs[1]) == 1
    assert ours == theirs
    assert outcome(lambda: spmdc.jit(function).partitioned(x).simulate(X)) == theirs


def test_functions_inside_of_others_are_told_how_values_are_sharded_once() -> None:
    inner = spmdc.jit(lambda y: tells("inner", y) + 1, mesh=devices(), in_shardings=P("y"))
    _, told = outcome(lambda: jax.jit(lambda x: inner(x) * 2)(X))
    assert told == [("inner", NamedSharding(devices(), P("y")))]


def test_a_program_says_whom_it_tells() -> None:
    program = spmdc.from_jax(SEEN["argument"], X, mesh={"x": 4, "y": 2}, in_shardings=P("x"))
    CALLS.clear()
    again = spmdc.parse(print_program(program))
    assert [host_function(op.attrs).name for op in again.main.body.ops if op.name == "inspect"] == ["inspect"]
    np.testing.assert_array_equal(spmdc.partition(again).simulate(X)[0], X + 1)
    assert not CALLS
