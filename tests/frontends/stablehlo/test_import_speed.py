"""Importing takes time in proportion to the number of ops."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spmdc
from ir.diagnostics import SpmdcError
from ir.program import all_ops
from spmdc.frontends.jax.lowering import import_lowered


def seconds_an_op(layers: int) -> float:
    def function(x: Any, w: Any) -> Any:
        for i in range(layers):
            x = jnp.tanh(x @ w + float(i))
            x = x - x.mean(0)
        return x

    lowered = jax.jit(function).lower(np.ones((8, 8), "f4"), np.ones((8, 8), "f4"))
    start = time.process_time()
    program = import_lowered(lowered)
    return (time.process_time() - start) / sum(1 for _ in all_ops(program))


def test_an_op_costs_as_much_in_a_large_module_as_in_a_small_one() -> None:
    seconds_an_op(10)
    small = min(seconds_an_op(30) for _ in range(3))
    assert seconds_an_op(400) < 3 * small + 2e-4


def test_a_line_of_many_constants_is_looked_through_once() -> None:
    start = time.process_time()
    with pytest.raises(SpmdcError, match="E701"):
        spmdc.from_hlo("HloModule m " + "x = constant(1) " * 20_000)
    assert time.process_time() - start < 5
