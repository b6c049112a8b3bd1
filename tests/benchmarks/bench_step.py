"""What a step of the models of tests/models takes on 8 host devices beside `jax.jit` with the same annotations, split
in every way that the tests split them. Run with `make bench`; prints every figure.

Both run in turn, and the least time of each counts, so that other work on the machine counts for neither.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import pytest
from harness import MESHES, Run
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from test_models import MODELS

import spmdc
from lowering.jax import ensure_devices

ROUNDS = 20
finish: Any = jax.block_until_ready


def placed(mesh: Mesh, specs: Any) -> Any:
    return jax.tree.map(lambda s: NamedSharding(mesh, s), specs, is_leaf=lambda s: isinstance(s, PartitionSpec))


def least_times(functions: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Seconds of a run of each."""
    best = dict.fromkeys(functions, math.inf)
    for call in functions.values():
        finish(call())
    for _ in range(ROUNDS):
        for name, call in functions.items():
            start = time.perf_counter()
            finish(call())
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def ratio(run: Run, sizes: Mapping[str, int]) -> float:
    """How many times as long a run takes as one of `jax.jit`; both get arrays that lie as they are placed."""
    mesh = Mesh(np.array(ensure_devices(8), dtype=object).reshape(tuple(sizes.values())), tuple(sizes))
    function = run.annotated or run.function
    inputs, outputs = placed(mesh, run.in_specs), placed(mesh, run.out_specs)
    with jax.set_mesh(mesh):
        plain = jax.jit(function, in_shardings=inputs, out_shardings=outputs).lower(*run.args).compile()
    args = [jax.device_put(x, spread(x, where)) for x, where in zip(run.args, inputs, strict=True)]
    ours = spmdc.jit(function, mesh=mesh, in_shardings=run.in_specs, out_shardings=run.out_specs)
    took = least_times({"jax.jit": lambda: plain(*args), "spmdc.jit": lambda: ours(*args)})
    print("  ".join(f"{name} {1e3 * seconds:.2f} ms" for name, seconds in took.items()), end="")
    return took["spmdc.jit"] / took["jax.jit"]


def spread(tree: Any, where: Any) -> Any:
    """The sharding of each leaf, from a prefix of the tree."""
    return jax.tree.map(lambda s, part: jax.tree.map(lambda _: s, part), where, tree)


@pytest.mark.parametrize("mesh", MESHES)
def test_a_step_of_a_model_beside_jax(mesh: str) -> None:
    found: list[float] = []
    for model, (ways, runs) in MODELS.items():
        for way in ways(MESHES[mesh]):
            if way.name != "nothing":
                print(f"\n{model}, {way.name} on {mesh}: ", end="")
                found.append(ratio(runs(way)[1], MESHES[mesh]))
                print(f", {found[-1]:.2f} times as long", end="")
    mean = math.exp(sum(map(math.log, found)) / len(found))
    print(f"\n{mesh}: geometric mean {mean:.2f}, worst {max(found):.2f}")
    assert mean < 1.1
