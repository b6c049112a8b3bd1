"""What it takes to compile the models of tests/models beside `jax.jit` with the same annotations, from the function to
an executable. Run with `make bench`; prints every figure.

Both are compiled in turn, from empty caches, and the least processor time of each counts, so that other work on the
machine counts for neither. XLA's instructions are those of the optimised modules: what its simplification leaves.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
import pytest
from harness import MESHES, Run
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from test_models import MODELS

import spmdc
from lowering.jax import ensure_devices
from spmdc.api import PartitionedProgram

T = TypeVar("T")
clear_caches: Any = jax.clear_caches
ROUNDS = 2
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = ", re.MULTILINE)


class Timed:
    """The least processor time of each step, in seconds, over all rounds."""

    def __init__(self) -> None:
        self.steps: dict[str, float] = {}

    def __call__(self, step: str, work: Callable[[], T]) -> T:
        start = time.process_time()
        result = work()
        self.steps[step] = min(self.steps.get(step, math.inf), time.process_time() - start)
        return result

    def total(self, *steps: str) -> float:
        return sum(self.steps[step] for step in steps)

    def __str__(self) -> str:
        return "  ".join(f"{step} {1e3 * seconds:.0f}" for step, seconds in self.steps.items())


@dataclass(frozen=True)
class Figures:
    """How spmdc compares with `jax.jit`: times as long, times as many instructions, and the share of its own steps."""

    seconds: float
    instructions: float
    own: float


def placed(mesh: Mesh, specs: Any) -> Any:
    return jax.tree.map(lambda s: NamedSharding(mesh, s), specs, is_leaf=lambda s: isinstance(s, PartitionSpec))


def staged(timed: Timed, jitted: Any, args: Sequence[Any]) -> Any:
    """The executable, by the stages that both have."""
    traced = timed("trace", lambda: jitted.trace(*args))
    lowered = timed("lower", lambda: traced.lower())
    return timed("compile", lambda: lowered.compile())


def own_steps(timed: Timed, run: Run, function: Callable[..., Any], mesh: Mesh) -> PartitionedProgram:
    """What spmdc itself does to the function, which `lower` holds too: importing it and partitioning it."""
    options = {"in_shardings": run.in_specs, "out_shardings": run.out_specs}
    jitted = jax.jit(function)
    with jax.set_mesh(mesh):
        timed("of which jax", lambda: jitted.trace(*run.args).lower())
    program = timed("from_jax", lambda: spmdc.from_jax(jitted, *run.args, mesh=mesh, **options))
    partitioned = timed("partition", lambda: spmdc.partition(program))
    timed("write", partitioned.jax_source)
    return partitioned


def instructions(compiled: Any) -> int:
    return len(_INSTRUCTION.findall(compiled.as_text()))


def compared(run: Run, sizes: Mapping[str, int]) -> Figures:
    mesh = Mesh(np.array(ensure_devices(8), dtype=object).reshape(tuple(sizes.values())), tuple(sizes))
    function = run.annotated or run.function
    theirs, ours, own = Timed(), Timed(), Timed()
    for _ in range(ROUNDS):
        clear_caches()
        with jax.set_mesh(mesh):
            specs = {"in_shardings": placed(mesh, run.in_specs), "out_shardings": placed(mesh, run.out_specs)}
            expected = staged(theirs, jax.jit(lambda *args: function(*args), **specs), run.args)
        clear_caches()
        jitted = spmdc.jit(function, mesh=mesh, in_shardings=run.in_specs, out_shardings=run.out_specs)
        found = staged(ours, jitted, run.args)
        own_steps(own, run, lambda *args: function(*args), mesh)
    stages = ("trace", "lower", "compile")
    whole = ours.total(*stages)
    share = (own.total("from_jax", "partition") - own.total("of which jax")) / whole
    counts = instructions(found), instructions(expected)
    print(f"\n  jax.jit    {theirs} ms, {counts[1]} instructions", end="")
    print(f"\n  spmdc.jit  {ours} ms, {counts[0]} instructions; {own} ms", end="")
    return Figures(whole / theirs.total(*stages), counts[0] / counts[1], share)


def mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


@pytest.mark.parametrize("mesh", ["8", "2x4"])
def test_compiling_a_model_beside_jax(mesh: str) -> None:
    found: list[Figures] = []
    for model, (ways, runs) in MODELS.items():
        way = list(ways(MESHES[mesh]))[-2]
        for part, run in zip(("forward", "step"), runs(way), strict=True):
            print(f"\n{model}, {part}, {way.name} on {mesh}:", end="")
            found.append(figures := compared(run, MESHES[mesh]))
            print(f"\n  {figures.seconds:.2f} times as long, {figures.instructions:.2f} times as many instructions, "
                  f"import and partition {figures.own:.0%}", end="")  # fmt: skip
    seconds, count = mean([f.seconds for f in found]), mean([f.instructions for f in found])
    print(f"\ngeometric means on {mesh}: {seconds:.2f} times as long, {count:.2f} times as many instructions")
    assert count < 1.1
    assert seconds < 1.2
    assert max(f.own for f in found) < 0.2
