"""The outside models beside `jax.jit` with the same annotations, on 8 host devices: what a step, a call and compiling
take, and what is sent. Run with `make bench-models`; prints a table.

Both run in turn, and the least of each counts, so that other work on the machine counts for neither. Compiling is
counted in processor time, from the function to an executable; a call is one of a function that takes and returns the
model's trees and computes next to nothing.
"""

from __future__ import annotations

import gc
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from compiled import Both, both, received
from harness import MESHES, Run
from jax.sharding import PartitionSpec
from placed import PARTS, runs
from timed import least_times
from zoo import MODELS

STEPS, CALLS, COMPILED = 40, 200, 2
"""Rounds of each."""

finish: Any = jax.block_until_ready
clear_caches: Any = jax.clear_caches


class Least:
    """The least time of each of two, ours first."""

    def __init__(self) -> None:
        self.seconds = [math.inf, math.inf]

    def note(self, which: int, seconds: float) -> None:
        self.seconds[which] = min(self.seconds[which], seconds)

    @property
    def ratio(self) -> float:
        return self.seconds[0] / self.seconds[1]


@dataclass(frozen=True)
class Figures:
    """Times as multiples of theirs, and bytes that a device receives, ours and theirs."""

    step: float
    compile: float
    call: float
    received: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.step:6.2f} {self.compile:8.2f} {self.call:6.2f} {self.received[0]:10,} {self.received[1]:10,}"


def compiled(run: Run, sizes: Mapping[str, int]) -> tuple[Least, Both, Any, Any]:
    """The processor time from the functions to executables, from empty caches and without garbage of what was made
    before; the functions, and both executables."""
    least = Least()
    for _ in range(COMPILED):
        made = both(run, sizes)
        clear_caches()
        gc.collect()
        start = time.process_time()
        ours = made.ours.trace(*made.args).lower().compile()
        least.note(0, time.process_time() - start)
        clear_caches()
        gc.collect()
        start = time.process_time()
        with jax.set_mesh(made.mesh):
            theirs = made.theirs.trace(*made.args).lower().compile()
        least.note(1, time.process_time() - start)
    return least, made, ours, theirs


def call_times(run: Run, sizes: Mapping[str, int]) -> Least:
    """Until a call returns, of a function of the same arguments that returns them as they are but for the first."""
    first, *rest = run.in_specs
    made = both(Run(_next_to_nothing, run.args, run.in_specs, (jax.tree.leaves(first, is_leaf=_is_spec), *rest)), sizes)
    least = Least()
    for _ in range(CALLS):
        for which, function in enumerate((made.ours, made.theirs)):
            start = time.perf_counter()
            results = function(*made.args)
            least.note(which, time.perf_counter() - start)
            finish(results)
    return least


def _is_spec(x: Any) -> bool:
    return isinstance(x, PartitionSpec)


def _next_to_nothing(*args: Any) -> Any:
    """All arguments as they are, but for the first leaf, which is doubled."""
    one, *others = jax.tree.leaves(args[0])
    return [one * 2, *others], *args[1:]


def figures(run: Run, sizes: Mapping[str, int]) -> Figures:
    compiling, made, ours, theirs = compiled(run, sizes)
    step = least_times(STEPS, lambda: ours(*made.args), lambda: theirs(*made.args))
    sent = received(ours, theirs, made.args)
    return Figures(step[0] / step[1], compiling.ratio, call_times(run, sizes).ratio, sent)


def mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def test_models_beside_jax() -> None:
    found: list[Figures] = []
    print(f"\n{'model':38} {'step':>6} {'compile':>8} {'call':>6} {'bytes':>10} {'of XLA':>10}")
    for name, mesh, part in itertools.product(MODELS, MESHES, PARTS):
        found.append(figures(runs(MODELS[name](), mesh)[part], MESHES[mesh]))
        print(f"{f'{name}, {mesh}, {part}':38} {found[-1]}", flush=True)
    steps = [f.step for f in found]
    means = mean(steps), mean([f.compile for f in found]), mean([f.call for f in found])
    print(f"{'geometric means':38} {means[0]:6.2f} {means[1]:8.2f} {means[2]:6.2f}")
    assert all(ours <= theirs for ours, theirs in (f.received for f in found))
    assert means[0] <= 0.95
    assert max(steps) <= 1.15
    assert means[1] <= 1.15
    assert max(f.call for f in found) <= 1.5
