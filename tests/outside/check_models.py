"""Models that other people wrote, forward and as a training step: equal to jax.jit, no more bytes than XLA.

Run with `make models`, which installs their packages: the extra `models`.
"""

from __future__ import annotations

import functools

import jax
import pytest
from compiled import Expected, both, expected, leaves, received
from harness import MESHES, Run
from placed import PARTS, runs
from zoo import MODELS


@functools.cache
def expected_of(name: str, part: str) -> Expected:
    """Of a model's part, the same on every mesh."""
    run = _run(name, part, "8")
    return expected(run.function, run.args)


def _run(name: str, part: str, mesh: str) -> Run:
    return runs(MODELS[name](), mesh)[part]


# One process runs all of a model, so that what JAX gives on one device is compiled once.
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in MODELS])
def test_a_model_is_equal_to_jax_and_sends_no_more_than_xla(name: str, mesh: str, part: str) -> None:
    run = _run(name, part, mesh)
    right = expected_of(name, part)
    made = both(run, MESHES[mesh])
    ours = made.ours.lower(*made.args).compile()
    right.check(ours(*made.args))
    right.check(ours.partitioned.simulate(*leaves(run.args)))
    with jax.set_mesh(made.mesh):
        # What XLA sends is decided before it writes machine code, so that need not be good.
        theirs = made.theirs.lower(*made.args).compile({"xla_backend_optimization_level": 0})
    of_ours, of_theirs = received(ours, theirs, made.args)
    print(f"{name} {mesh} {part}: {of_ours} bytes, {of_theirs} under XLA")
    assert of_ours <= of_theirs
