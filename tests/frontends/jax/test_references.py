"""References (`jax.new_ref`) from around functions of `spmdc.jit`: read and changed as `jax.jit` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spmdc
from lowering.jax import ensure_devices

P: Any = jax.sharding.PartitionSpec
MESH = {"x": 4, "y": 2}
X = np.arange(10 * 6, dtype=np.float32).reshape(10, 6)
Jit = Callable[..., Any]
partitioned: Jit = lambda function, **options: spmdc.jit(function, mesh=MESH, **options)  # noqa: E731


def put(reference: Any, index: Any, value: Any) -> None:
    reference[index] = value


def argument(jit: Jit) -> Any:
    def add(reference: Any, x: Any) -> Any:
        reference[...] += x
        return reference[0]

    total = jax.new_ref(jnp.asarray(X))
    step = jit(add)
    return step(total, 1.0), step(total, X), total[...]


def closed_over(jit: Jit) -> Any:
    total = jax.new_ref(jnp.asarray(X))

    def add(x: Any) -> Any:
        total[2] = x
        return jnp.sum(total[...])

    step = jit(add)
    return step(X[0]), step(X[1]), total[...]


def in_trees_beside_static_and_donated(jit: Jit) -> Any:
    state = {"sum": jax.new_ref(jnp.asarray(X)), "steps": jax.new_ref(jnp.int32(0))}

    def add(x: Any, state: Any, row: int, *, scale: Any) -> Any:
        state["steps"][...] += 1
        state["sum"][row] *= scale
        return x * 2

    step = jit(add, static_argnums=2, donate_argnums=0)
    doubled = [step(jnp.asarray(X), state, row, scale=2.0) for row in (1, 1, 2)]
    return doubled, state["sum"][...], state["steps"][...]


def in_loops_and_branches(jit: Jit) -> Any:
    total, rows = jax.new_ref(jnp.float32(0)), jax.new_ref(jnp.asarray(X))

    def each(i: Any, carried: Any) -> Any:
        total[...] += i
        return carried

    def run(n: Any) -> None:
        jax.lax.fori_loop(0, n, each, 0)
        jax.lax.cond(n > 3, lambda: put(rows, 0, X[1]), lambda: put(rows, 1, X[2]))

    step = jit(run)
    return step(4), step(3), total[...], rows[...]


def of_keys(jit: Jit) -> Any:
    key = jax.new_ref(jax.random.key(0))

    def draw() -> Any:
        key[...], used = jax.random.split(key[...])
        return jax.random.uniform(used, (10,))

    step = jit(draw)
    return step(), step(), jax.random.key_data(key[...])


def of_a_function_that_is_traced(jit: Jit) -> Any:
    def outer(x: Any, y: Any) -> Any:
        total = jax.new_ref(x)
        jit(lambda: put(total, 0, y))()
        jit(lambda reference: put(reference, 1, y))(total)
        return total[...]

    return jax.jit(outer)(X, X[5])


def differentiated(jit: Jit) -> Any:
    def outer(x: Any) -> Any:
        held = jax.new_ref(jnp.zeros_like(x))
        jit(lambda reference, x: put(reference, ..., jnp.sin(x)))(held, x)
        return jnp.sum(held[...])

    return jax.jit(jax.grad(outer))(X)


def of_their_own_differentiated(jit: Jit) -> Any:
    def inner(x: Any) -> Any:
        held, rows = jax.new_ref(jnp.zeros_like(x)), jax.new_ref(x)
        held[...] = jnp.sin(x)
        jax.lax.fori_loop(0, 3, lambda i, _: put(held, i, held[i] * rows[i]), None)
        return jnp.sum(held[...])

    return jax.grad(jit(inner))(X), jax.jvp(jax.grad(jit(inner)), (X,), (X,)), jax.vmap(jax.grad(jit(inner)))(X[None])


def mapped(jit: Jit) -> Any:
    rows = jax.new_ref(jnp.asarray(X))
    jax.vmap(jit(lambda row, x: put(row, ..., row[...] * x)))(rows, X[:, 1])
    return rows[...]


USES = (
    argument, closed_over, in_trees_beside_static_and_donated, in_loops_and_branches, of_keys,
    of_a_function_that_is_traced, differentiated, of_their_own_differentiated, mapped,
)  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_references_are_changed_as_jax_jit_changes_them(use: Callable[[Jit], Any]) -> None:
    wanted, got = use(jax.jit), use(partitioned)
    structure: Any = jax.tree.structure
    assert structure(got) == structure(wanted)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert (g.dtype, g.weak_type) == (w.dtype, w.weak_type)
        np.testing.assert_allclose(g, w, rtol=1e-6)


@pytest.mark.parametrize("axes", ["Auto", "Explicit"])
def test_a_reference_stays_where_it_is(axes: str) -> None:
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType[axes],) * 2, devices=ensure_devices(8))
    place = jax.sharding.NamedSharding(mesh, P("x"))
    add = spmdc.jit(lambda reference, x: put(reference, ..., reference[...] @ x))
    single = jax.new_ref(jnp.eye(8))
    with jax.set_mesh(mesh):
        weights = np.ones((8, 8), np.float32)
        split = jax.new_ref(jax.device_put(np.eye(8), place))
        add(split, weights)
        assert split.sharding.is_equivalent_to(place, 2)
        np.testing.assert_array_equal(split[...], np.ones((8, 8)))
        assert add.partitioned(split, weights).collectives() == []
    spmdc.jit(lambda: put(single, 0, weights[1]), mesh=MESH)()
    assert single.sharding.device_set == {jax.devices()[0]}


@pytest.mark.parametrize(
    ("function", "count"),
    [(lambda a, b: a[...], 2), (lambda a: a, 1)],
    ids=["given twice", "returned"],
)
def test_what_jax_jit_refuses_of_references_is_refused_with_its_words(function: Any, count: int) -> None:
    reference = jax.new_ref(jnp.zeros(4))
    messages = []
    for jit in (jax.jit, partitioned):
        with pytest.raises(ValueError, match="reference") as refused:
            jit(function)(*(reference,) * count)
        messages.append(str(refused.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("is_closed_over", [True, False])
def test_a_program_by_itself_takes_no_references(is_closed_over: bool) -> None:
    total: Any = jax.new_ref(jnp.zeros((10, 6)))

    def add(x: Any, reference: Any = total) -> Any:
        reference[...] += x
        return x

    given: Any = (X,) if is_closed_over else (X, total)
    for call in (lambda: spmdc.jit(add, mesh=MESH).lower(*given), lambda: spmdc.from_jax(add, *given)):
        with pytest.raises(spmdc.SpmdcError, match=r"E711.*add takes a reference"):
            call()
