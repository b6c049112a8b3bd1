"""Functions of JAX's that read and write at indices, in range and out of it, through spmdc.jit as through jax.jit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import spmdc

pytestmark = pytest.mark.usefixtures("devices")

Rng = np.random.Generator
Function = Callable[[Any, Any, Any], Any]
"""Of a tensor f32[7, 6], indices s32[3] and a scalar index."""

_SHAPE, _DEVICES = (7, 6), {"x": 3, "y": 2}
_IN_A_MODULE = 25
_SHARDINGS = ("P('x')", "P('y')", "P(None, 'x')", "P('x', 'y')", "P(None, ('y', 'x'))", "P()")


def _read(rng: Rng) -> Function:
    d, mode = int(rng.integers(2)), str(rng.choice(["clip", "fill", "wrap"]))
    width = int(rng.integers(1, 5))
    forms: list[Function] = [
        lambda v, i, s: jnp.take(v, i, axis=d, mode=mode),
        lambda v, i, s: v.at[i].get(mode="fill", fill_value=-1),
        lambda v, i, s: v.at[i, i[::-1]].get(mode="clip"),
        lambda v, i, s: lax.dynamic_slice_in_dim(v, s, width, d),
        lambda v, i, s: jnp.take_along_axis(v, jnp.broadcast_to(i[:, None], (3, 6)), 0, mode="fill"),
        lambda v, i, s: v[s],
    ]
    return forms[int(rng.integers(len(forms)))]


def _write(rng: Rng) -> Function:
    how, mode = str(rng.choice(["set", "add", "min", "max", "mul"])), str(rng.choice(["drop", "clip"]))
    d, width = int(rng.integers(2)), int(rng.integers(1, 5))
    number = float(rng.integers(-3, 4))
    forms: list[Function] = [
        lambda v, i, s: getattr(v.at[s], how)(number, mode=mode),
        lambda v, i, s: getattr(v.at[:, s], how)(v[:, 0] + number, mode=mode),
        lambda v, i, s: v.at[i].add(jnp.arange(18.0).reshape(3, 6), mode=mode),
        lambda v, i, s: lax.dynamic_update_slice_in_dim(v, lax.slice_in_dim(v, 0, width, axis=d), s, d),
        lambda v, i, s: lax.dynamic_update_slice_in_dim(v, lax.dynamic_slice_in_dim(v, i[0], width, d), s, d)[None],
        lambda v, i, s: v.at[i, i].max(number, mode=mode),
    ]
    return forms[int(rng.integers(len(forms)))]


def _function(rng: Rng) -> Function:
    """One or two writes, then a read, each of a tensor in a sharding of its own."""
    steps = [_write(rng) for _ in range(int(rng.integers(1, 3)))]
    read, shardings = _read(rng), rng.choice(_SHARDINGS, 3)

    def function(v: Any, i: Any, s: Any) -> Any:
        v = spmdc.shard(jnp.sort(v, axis=0), str(shardings[0]))
        for step, sharding in zip(steps, shardings[1:], strict=False):
            v = step(v, i, s).reshape(_SHAPE)
            v = spmdc.shard(v, str(sharding))
        return read(v, i, s), v

    return function


def _differing(functions: Sequence[Function], seed: int) -> list[int]:
    """Which of the functions, in one module, differ on several draws of indices."""
    rng = np.random.default_rng(seed)

    def together(v: Any, i: Any, s: Any) -> Any:
        return [function(v + n, i, s) for n, function in enumerate(functions)]

    ours, theirs = spmdc.jit(together, mesh=_DEVICES), jax.jit(together)
    found: set[int] = set()
    for _ in range(4):
        v = rng.integers(-9, 10, _SHAPE).astype(np.float32)
        i = rng.choice([-20, -8, -2, -1, 0, 1, 3, 5, 6, 7, 30], 3).astype(np.int32)
        s = np.int32(rng.choice([-20, -8, -2, -1, 0, 1, 3, 5, 6, 7, 30]))
        pairs = zip(ours(v, i, s), theirs(v, i, s), strict=True)
        for n, (got, want) in enumerate(pairs):
            alike = (np.array_equal(a, b, equal_nan=True) for a, b in zip(got, want, strict=True))
            found.update([] if all(alike) else [n])
    return sorted(found)


def _check(block: int) -> None:
    rng = np.random.default_rng(block)
    functions = [_function(rng) for _ in range(_IN_A_MODULE)]
    found = _differing(functions, block)
    assert not found, f"functions {found} of block {block}; alone: {[_differing([functions[n]], block) for n in found]}"


@pytest.mark.parametrize("block", range(16))
def test_indices_out_of_range_mean_the_same_on_shards(block: int) -> None:
    """Of 400 functions in each run; of 10,000 when soaking."""
    _check(block)


@pytest.mark.soak
@pytest.mark.parametrize("block", range(16, 400))
def test_indices_out_of_range_mean_the_same_on_shards_in_many_functions(block: int) -> None:
    _check(block)
