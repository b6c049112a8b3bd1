"""Indexing by what is known: imported functions read and write what they are split over without sending indices.

Each is checked against jax, and against the bytes that the elements themselves need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import spmdc

P: Any = PartitionSpec
X = np.arange(16 * 8, dtype=np.float32).reshape(16, 8)
W = np.ones((8, 8), np.float32)
LABELS = np.array([3, 0, 7, 7, -1, 2, 5, 1, 4, 4, 6, 0, 1, -8, 2, 3], np.int32)
ROWS = P("x")


def cross_entropy(x: Any) -> Any:
    return -jax.nn.log_softmax(x)[jnp.arange(16), LABELS]


_LOCAL: dict[str, Callable[..., Any]] = {
    "every second row": lambda x: x[jnp.arange(8) * 2],
    "all rows by their numbers": lambda x: x[jnp.arange(16)],
    "a row of each column": lambda x: jnp.take_along_axis(x, jnp.zeros((16, 1), int), axis=1),
    "labels": lambda x: x[jnp.arange(16), LABELS],
    "the largest of each row": lambda x: x[jnp.arange(16), jnp.argmax(x, axis=1)],
    "cross entropy": cross_entropy,
    "its gradient": jax.grad(lambda x: cross_entropy(x).sum()),
    "rows added": lambda x: x.at[jnp.arange(8) * 2].add(W),
    "rows set": lambda x: x.at[4:12].set(W),
    "labels added": lambda x: x.at[jnp.arange(16), LABELS].add(1.0),
    "rows sorted by their own order": lambda x: jnp.take_along_axis(x, jnp.argsort(-x, axis=1), axis=1),
    "one hot of the largest": lambda x: jax.nn.one_hot(jnp.argmax(x, axis=1), 8),
    "the lower triangle": jnp.tril,
    "softmax": lambda x: jax.nn.softmax(jnp.where(jnp.arange(8) < 4, x, -jnp.inf)),
}


@pytest.mark.parametrize("name", _LOCAL)
def test_rows_at_known_indices_are_placed_where_they_are_needed(name: str) -> None:
    function = _LOCAL[name]
    assert _received(function) == 0


def test_a_range_of_rows_moves_only_those_that_change_devices() -> None:
    """Of 8 rows for 8 devices, device 3 lacks the row that it has to hold, and so do most others: one row of 8."""
    assert _received(lambda x: x[jnp.arange(8)]) == 8 * 4


def test_rows_in_a_loop_need_no_arithmetic_on_their_number() -> None:
    def total(x: Any) -> Any:
        return jax.lax.fori_loop(0, 16, lambda i, a: a + x[i], jnp.zeros(8))

    program = spmdc.from_jax(total, X, mesh={"x": 8}, in_shardings=(P(None, "x"),))
    text = spmdc.partition(program).text()
    assert "select" not in text
    assert "collective" not in text


def _received(function: Callable[..., Any]) -> int:
    program = spmdc.from_jax(function, X, mesh={"x": 8}, in_shardings=(ROWS,), out_shardings=ROWS)
    partitioned = spmdc.partition(program)
    jitted: Any = jax.jit(function)
    np.testing.assert_allclose(partitioned.simulate(X)[0], jitted(X), rtol=1e-6)
    return partitioned.received_bytes()
