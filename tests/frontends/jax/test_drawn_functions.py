"""Functions of jax.numpy, drawn at random: imported, simplified and partitioned, they compute what jax.jit does; so do
their gradients, and they over a further dim, on devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import examples
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jax_functions import MESH, SHAPES, Function, functions

import spmdc
from lowering.jax import compile_in_one

_IN_A_MODULE = 10
_jit: Any = jax.jit
_QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


Array = Any
Results = Callable[..., tuple[Array, ...]]


def _summed(function: Results) -> Callable[..., Array]:
    """The results as one number, to which neighbours add unlike shares."""

    def total(*arrays: Array) -> Array:
        numbers = [r.astype(jnp.float32).ravel() for r in function(*arrays)]
        return sum(((jnp.arange(r.size) % 3 - 1.0) * r).sum() for r in numbers)

    return total


def _gradient(function: Results) -> Results:
    return lambda a, b, c, d: jax.grad(_summed(function), argnums=(0, 2, 3))(a, b, c, d)


def _mapped(function: Results) -> Results:
    def over_three(a: Array, b: Array, c: Array, d: Array) -> tuple[Array, ...]:
        mapped: Results = jax.vmap(function, in_axes=(0, None, 0, None))
        return mapped(jnp.stack([a, -a, a[::-1]]), b, jnp.stack([c, c * 2, c + 1]), d)

    return over_three


_TRANSFORMED: Mapping[str, Callable[[Results], Results]] = {
    "itself": lambda f: f,
    "gradient": _gradient,
    "mapped": _mapped,
    "gradient of mapped": lambda f: _gradient(_mapped(f)),
    "mapped gradient": lambda f: _mapped(_gradient(f)),
    "recomputed": lambda f: _gradient(jax.checkpoint(f)),
}


def _has(function: Results, arrays: Sequence[Array]) -> bool:
    """Whether JAX itself knows the function's derivative, as of no loop of unknown length."""
    try:
        jax.eval_shape(function, *arrays)
    except (TypeError, ValueError, NotImplementedError):
        return False
    return True


def _arrays(seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.integers(-4, 5, shape).astype(np.int32 if i == 1 else np.float32) for i, shape in enumerate(SHAPES)]


def _differing_on_devices(drawn: Sequence[tuple[Function, str]], seed: int) -> list[int]:
    """Which of the functions, in one module, differ on devices."""
    arrays = _arrays(seed)
    transformed = [_TRANSFORMED[how](function) for function, how in drawn]
    known = [(n, f) for n, f in enumerate(transformed) if _has(f, arrays)]

    def together(first: Array, *others: Array) -> list[tuple[Array, ...]]:
        return [function(first + n, *others) for n, function in known]

    want = _jit(together, compiler_options=_QUICKLY)(*arrays)
    program = spmdc.partition(spmdc.from_jax(together, *arrays, mesh=MESH)).with_even_results().program
    flat = [(n, x) for (n, _), results in zip(known, want, strict=True) for x in results]
    got = compile_in_one(program)(*arrays)
    return sorted({n for (n, x), y in zip(flat, got, strict=True) if not _alike(x, y)})


def _differing(drawn: Sequence[Function], seed: int) -> list[int]:
    """Which of the functions, in one module, differ as they are imported, or partitioned."""
    arrays = _arrays(seed)

    def together(first: Any, *others: Any) -> list[tuple[Any, ...]]:
        return [function(first + n, *others) for n, function in enumerate(drawn)]

    want = _jit(together, compiler_options=_QUICKLY)(*arrays)
    flat = [(n, np.asarray(x)) for n, results in enumerate(want) for x in results]
    program = spmdc.from_jax(together, *arrays, mesh=MESH)
    both = spmdc.evaluate(program, *arrays), spmdc.partition(program).simulate(*arrays)
    return sorted({n for got in both for (n, x), y in zip(flat, got, strict=True) if not _alike(x, y)})


def _alike(x: Any, y: Any) -> bool:
    x, y = np.asarray(x), np.asarray(y)
    return x.dtype == y.dtype and np.array_equal(x.astype(np.float64), y.astype(np.float64), equal_nan=True)


@settings(max_examples=examples(5), phases=(Phase.explicit, Phase.generate), deadline=None)
@given(st.lists(functions(), min_size=_IN_A_MODULE, max_size=_IN_A_MODULE), st.integers(0, 1000))
def test_functions_compute_what_jax_computes_once_imported_and_partitioned(drawn: list[Function], seed: int) -> None:
    found = _differing(drawn, seed)
    assert not found, f"{[drawn[n] for n in found]}; alone: {[_differing([drawn[n]], seed) for n in found]}"


_DRAWN = st.tuples(functions(5), st.sampled_from(sorted(_TRANSFORMED)))


@pytest.mark.usefixtures("devices")
@settings(max_examples=examples(3), phases=(Phase.explicit, Phase.generate), deadline=None)
@given(st.lists(_DRAWN, min_size=_IN_A_MODULE, max_size=_IN_A_MODULE), st.integers(0, 1000))
def test_functions_and_what_jax_makes_of_them_compute_the_same_on_devices(
    drawn: list[tuple[Function, str]], seed: int
) -> None:
    found = _differing_on_devices(drawn, seed)
    assert not found, f"{[drawn[n] for n in found]}; alone: {[_differing_on_devices([drawn[n]], seed) for n in found]}"
