"""A run of a model, compiled by `spmdc.jit` and by `jax.jit` for the same eight devices; and how far apart two results
may be that are both right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from harness import Run
from hlo_texts import has_unknown_trips, received_in_hlo
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from watched import runs_of

import spmdc
from lowering.jax import ensure_devices

PERTURBED = 6
"""How many times a function is run with arguments that are off by a rounding."""

ROUNDINGS = 8.0
"""How many times as far off a result may be as these runs are from one another: sums are in other orders, in which
each of the roundings within may fall the other way, not only those of the arguments."""


@dataclass(frozen=True)
class Both:
    """A function as it was before compilation by each, and its arguments where both take them."""

    ours: Any
    theirs: Any
    mesh: Mesh
    args: tuple[Any, ...]


def both(run: Run, sizes: Mapping[str, int]) -> Both:
    """The function under `spmdc.jit` and under `jax.jit`, which is to be lowered with the mesh set. Nothing is traced.

    Each has a function of its own, so that neither finds what JAX has traced for the other.
    """
    mesh = Mesh(np.array(ensure_devices(8), dtype=object).reshape(tuple(sizes.values())), tuple(sizes))
    inputs, outputs = _on(mesh, run.in_specs), _on(mesh, run.out_specs)
    plain: Any = jax.jit(lambda *args: run.function(*args), in_shardings=inputs, out_shardings=outputs)
    ours = spmdc.jit(
        lambda *args: run.function(*args), mesh=mesh, in_shardings=run.in_specs, out_shardings=run.out_specs
    )
    args = [jax.device_put(x, _of_leaves(x, where)) for x, where in zip(run.args, inputs, strict=True)]
    return Both(ours, plain, mesh, tuple(args))


def received(ours: Any, theirs: Any, args: Sequence[Any]) -> tuple[int, int]:
    """Bytes that a device receives in one call of each executable.

    XLA does not say how often some loops run, which is for their data to say. Where one has such a loop, a call of each
    is watched, and all collectives of both modules count as often as they ran.
    """
    modules = ours.as_text(), theirs.as_text()
    if not any(map(has_unknown_trips, modules)):
        return ours.partitioned.received_bytes(), received_in_hlo(modules[1])
    runs = [runs_of(hlo, functools.partial(run, *args)) for hlo, run in zip(modules, (ours, theirs), strict=True)]
    first, second = (received_in_hlo(hlo, ran) for hlo, ran in zip(modules, runs, strict=True))
    return first, second


def _on(mesh: Mesh, specs: Any) -> Any:
    return jax.tree.map(lambda s: NamedSharding(mesh, s), specs, is_leaf=lambda s: isinstance(s, PartitionSpec))


def _of_leaves(tree: Any, where: Any) -> Any:
    """The sharding of each leaf, from a prefix of the tree."""
    return jax.tree.map(lambda s, part: jax.tree.map(lambda _: s, part), where, tree)


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(tree)]


@dataclass(frozen=True)
class Expected:
    """What `jax.jit` gives on one device, and by how much each element of a result may be off."""

    results: Sequence[np.ndarray]
    allowed: Sequence[float]

    def check(self, results: Any) -> None:
        """Raises AssertionError for a result of another type, or further off than it may be."""
        found = leaves(results)
        for i, (got, whole, allowed) in enumerate(zip(found, self.results, self.allowed, strict=True)):
            assert (got.shape, got.dtype) == (whole.shape, whole.dtype), i
            np.testing.assert_allclose(got, whole, rtol=0, atol=allowed, err_msg=f"result {i}")


def expected(function: Callable[..., Any], args: tuple[Any, ...]) -> Expected:
    """The results on one device, and what rounding may change of them.

    How far roundings carry depends on the function: a gradient that is 0 but for rounding has no digit in common with
    another run's, and Adam makes a whole step of it. So it is measured. The function is run with arguments of
    which each float is off by one rounding or none; of each result, the largest change of an element, and at least a
    rounding of its largest, is what one rounding makes, and `ROUNDINGS` times this is allowed. Integers are equal.
    """
    jitted: Any = jax.jit(function)
    results = leaves(jitted(*args))
    numbers = np.random.default_rng(0)
    others = [leaves(jitted(*jax.tree.map(lambda x: _off(x, numbers), args))) for _ in range(PERTURBED)]
    allowed: list[float] = []
    for i, whole in enumerate(results):
        if not np.issubdtype(whole.dtype, np.floating):
            allowed.append(0.0)
            continue
        rounding = float(np.finfo(whole.dtype).eps * np.max(np.abs(whole), initial=0))
        changes = (float(np.max(np.abs(other[i] - whole), initial=0)) for other in others)
        allowed.append(ROUNDINGS * max(rounding, *changes))
    return Expected(results, allowed)


def _off(x: Any, numbers: np.random.Generator) -> Any:
    """The array, each of its floats off by one rounding or none."""
    whole = np.asarray(x)
    if not np.issubdtype(whole.dtype, np.floating):
        return x
    signs = numbers.integers(-1, 2, whole.shape)
    return (whole * (1 + signs * np.finfo(whole.dtype).eps)).astype(whole.dtype)
