"""What a call of `spmdc.jit` takes beside one of `jax.jit`. Run with `make bench`; prints every figure.

Both are called in turn, and the least time of each counts, so that other work on the machine counts for neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import spmdc
from lowering.jax import ensure_devices

P: Any = PartitionSpec
ROUNDS, CALLS = 400, 3
finish: Any = jax.block_until_ready


def least_times(functions: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Seconds of a call of each."""
    best = dict.fromkeys(functions, float("inf"))
    for call in functions.values():
        finish(call())
    for _ in range(ROUNDS):
        for name, call in functions.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                result = call()
            best[name] = min(best[name], (time.perf_counter() - start) / CALLS)
            finish(result)
    return best


@pytest.mark.parametrize("said", [True, False], ids=["in_shardings", "where arguments lie"])
@pytest.mark.parametrize("count", [1, 10, 100])
def test_a_call_takes_at_most_half_as_long_again_as_one_of_jax(count: int, said: bool) -> None:
    mesh = Mesh(np.array(ensure_devices(8)), ("x",))
    lying = NamedSharding(mesh, P("x"))
    arrays = [jax.device_put(np.ones(8, np.float32), lying) for _ in range(count)]

    def add(*arrays: Any) -> list[Any]:
        return [x + 1 for x in arrays]

    options: dict[str, Any] = {"in_shardings": (P("x"),) * count} if said else {}
    plain, ours = jax.jit(add), spmdc.jit(add, mesh=mesh, **options)
    took = least_times({"jax.jit": lambda: plain(*arrays), "spmdc.jit": lambda: ours(*arrays)})
    ratio = took["spmdc.jit"] / took["jax.jit"]
    figures = ", ".join(f"{name} {1e6 * seconds:.1f} us" for name, seconds in took.items())
    print(f"\n{count} arguments: {figures}, {ratio:.2f} times as long")
    assert ratio <= 1.5


@pytest.mark.parametrize("count", [1, 10, 100])
def test_a_call_of_what_is_compiled_takes_at_most_half_as_long_again_as_one_of_jax(count: int) -> None:
    mesh = Mesh(np.array(ensure_devices(8)), ("x",))
    lying = NamedSharding(mesh, P("x"))
    arrays = [jax.device_put(np.ones(8, np.float32), lying) for _ in range(count)]

    def add(*arrays: Any) -> list[Any]:
        return [x + 1 for x in arrays]

    plain: Any = jax.jit(add).lower(*arrays).compile()
    ours = spmdc.jit(add, mesh=mesh).lower(*arrays).compile()
    took = least_times({"jax": lambda: plain(*arrays), "spmdc": lambda: ours(*arrays)})
    ratio = took["spmdc"] / took["jax"]
    print(f"\n{count} arguments, compiled: {ratio:.2f} times as long")
    assert ratio <= 1.5
