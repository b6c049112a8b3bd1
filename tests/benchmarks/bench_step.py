"""What a step of the models of tests/models takes on 8 host devices beside `jax.jit` with the same annotations, split
in every way that the tests split them. Run with `make bench`; prints every figure.

Both run in turn, and the least time of each counts, so that other work on the machine counts for neither. The
instructions of the optimised modules are counted too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pytest
from harness import MESHES, Run
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from test_models import MODELS
from timed import least_times

import spmdc
from lowering.jax import ensure_devices

ROUNDS = 60
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = ", re.MULTILINE)
finish: Any = jax.block_until_ready


def placed(mesh: Mesh, specs: Any) -> Any:
    return jax.tree.map(lambda s: NamedSharding(mesh, s), specs, is_leaf=lambda s: isinstance(s, PartitionSpec))


def instructions(executable: Any) -> int:
    return len(_INSTRUCTION.findall(executable.as_text()))


def ratios(run: Run, sizes: Mapping[str, int]) -> tuple[float, float]:
    """How many times as long a run takes as one of `jax.jit`, and how many times as many instructions it has; both get
    arrays that are where they are to be."""
    mesh = Mesh(np.array(ensure_devices(8), dtype=object).reshape(tuple(sizes.values())), tuple(sizes))
    function = run.annotated or run.function
    inputs, outputs = placed(mesh, run.in_specs), placed(mesh, run.out_specs)
    with jax.set_mesh(mesh):
        plain = jax.jit(function, in_shardings=inputs, out_shardings=outputs).lower(*run.args).compile()
    args = [jax.device_put(x, spread(x, where)) for x, where in zip(run.args, inputs, strict=True)]
    jitted = spmdc.jit(function, mesh=mesh, in_shardings=run.in_specs, out_shardings=run.out_specs)
    ours = jitted.lower(*run.args).compile()
    found = least_times(ROUNDS, lambda: plain(*args), lambda: ours(*args))
    took = dict(zip(("jax.jit", "spmdc.jit"), found, strict=True))
    print("  ".join(f"{name} {1e3 * seconds:.2f} ms" for name, seconds in took.items()), end="")
    counts = instructions(ours), instructions(plain)
    print(f"; {counts[0]} and {counts[1]} instructions", end="")
    return took["spmdc.jit"] / took["jax.jit"], counts[0] / counts[1]


def spread(tree: Any, where: Any) -> Any:
    """The sharding of each leaf, from a prefix of the tree."""
    return jax.tree.map(lambda s, part: jax.tree.map(lambda _: s, part), where, tree)


@pytest.mark.parametrize("mesh", MESHES)
def test_a_step_of_a_model_beside_jax(mesh: str) -> None:
    times: list[float] = []
    counts: list[float] = []
    for model, (ways, runs) in MODELS.items():
        for way in ways(MESHES[mesh]):
            if way.name != "nothing":
                print(f"\n{model}, {way.name} on {mesh}: ", end="")
                took, count = ratios(runs(way)[1], MESHES[mesh])
                print(f"; {took:.2f} times as long, {count:.2f} times as many", end="")
                times.append(took)
                counts.append(count)
    mean = math.exp(sum(map(math.log, times)) / len(times))
    print(f"\n{mesh}: geometric mean of times {mean:.2f}, worst {max(times):.2f}; most instructions {max(counts):.2f}")
    assert mean < 0.95
    assert max(counts) < 1.1
