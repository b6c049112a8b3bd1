"""JAX functions become programs that compute the same, whole and partitioned."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

import spmdc
from ir.program import all_ops
from ir.spelling.printer import print_program

P: Any = jax.sharding.PartitionSpec
Layer = tuple[npt.NDArray[Any], npt.NDArray[Any]]


def mlp(layers: list[Layer], x: Any) -> Any:
    for w, b in layers[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = layers[-1]
    return jax.nn.softmax(x @ w + b)


@pytest.fixture
def arguments() -> tuple[list[Layer], npt.NDArray[Any]]:
    rng = np.random.default_rng(0)
    sizes = ((16, 32), (32, 8))
    layers = [(rng.normal(size=s).astype("f4"), rng.normal(size=s[1]).astype("f4")) for s in sizes]
    return layers, rng.normal(size=(10, 16)).astype("f4")


MLP_SHARDINGS = ([(P(None, "y"), P("y")), (P("y", None), None)], P("x"))


def test_an_mlp_is_imported_partitioned_and_simulated(arguments: tuple[list[Layer], npt.NDArray[Any]]) -> None:
    program = spmdc.from_jax(mlp, *arguments, mesh={"x": 4, "y": 2}, in_shardings=MLP_SHARDINGS)
    leaves = jax.tree.leaves(arguments)
    expected = np.asarray(jax.jit(mlp)(*arguments))
    np.testing.assert_allclose(spmdc.evaluate(program, *leaves)[0], expected, rtol=1e-5, atol=1e-7)
    partitioned = spmdc.partition(program)
    np.testing.assert_allclose(partitioned.simulate(*leaves)[0], expected, rtol=1e-5, atol=1e-7)
    assert [c.kind for c in partitioned.collectives()] == ["all_reduce"]


def test_parameters_are_named_as_the_leaves_of_the_arguments(arguments: tuple[list[Layer], npt.NDArray[Any]]) -> None:
    program = spmdc.from_jax(mlp, *arguments)
    names = [v.name for v in program.main.params]
    assert names == ["layers_0_0", "layers_0_1", "layers_1_0", "layers_1_1", "x"]


def test_results_are_named_as_the_leaves_of_what_is_returned() -> None:
    program = spmdc.from_jax(lambda x: {"loss": x.sum(), "more": [x, x + 1]}, np.ones(3, "f4"))
    assert [r.name for r in program.main.results] == ["loss", "more_0", "more_1"]


def test_the_printed_program_parses_again(arguments: tuple[list[Layer], npt.NDArray[Any]]) -> None:
    program = spmdc.from_jax(mlp, *arguments, mesh={"x": 4, "y": 2}, in_shardings=MLP_SHARDINGS)
    text = spmdc.propagate(program).text()
    again = spmdc.parse(text)
    assert [op.name for op in all_ops(again)] == [op.name for op in all_ops(program)]


def test_regions_that_return_nothing_are_not_imported() -> None:
    def f(x: Any) -> Any:
        jax.lax.cond(x.sum() > 0, lambda: None, lambda: None)
        jax.shard_map(lambda _: None, in_specs=P("x"), out_specs=None)(x)
        return x

    program = spmdc.from_jax(f, np.ones(8, "f4"), mesh={"x": 4})
    assert list(all_ops(program)) == []
    spmdc.parse(print_program(program))


def test_ops_know_the_line_of_the_users_function() -> None:
    def f(x: Any) -> Any:
        doubled = x + x
        return jnp.tanh(doubled)

    program = spmdc.from_jax(f, np.ones(3, "f4"))
    span = next(op.span for op in all_ops(program) if op.name == "tanh")
    assert span is not None
    assert span.source.name == __file__
    assert (span.source.line(span.line) or "").strip() == "return jnp.tanh(doubled)"


def test_arguments_that_are_not_used_stay_parameters() -> None:
    program = spmdc.from_jax(lambda x, unused: x + 1, np.ones(3, "f4"), np.ones(2, "f4"))
    assert [v.name for v in program.main.params] == ["x", "unused"]


def test_an_update_of_rows_that_are_known_is_exchanged() -> None:
    """The device with rows 12 to 15 of the result lacks rows 9 to 12 of the update."""
    x, u = np.zeros((32, 4), "f4"), np.arange(64, dtype="f4").reshape(16, 4)
    program = spmdc.from_jax(
        lambda x, u: x.at[3:19].set(u), x, u, mesh={"d": 8}, in_shardings=(P("d"), P("d")), out_shardings=P("d")
    )
    q = spmdc.partition(program)
    assert {c.kind for c in q.collectives()} == {"collective_permute"}
    assert (q.received_bytes(), q.warnings) == (4 * 4 * 4, ())
    want = x.copy()
    want[3:19] = u
    np.testing.assert_array_equal(q.simulate(x, u)[0], want)
