"""Every public function of JAX's that computes from arrays, on small split ones.

The functions are found by looking into the modules, so a new JAX brings its new ones. `make test` partitions and
simulates half of them and compares with the evaluation; `make soak` does so with all, and runs them on devices beside
`jax.jit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from public_calls import CALLS, NO_COMPUTATIONS
from public_surface import Call, call_of, is_traceable, public_functions

import spmdc

P: Any = jax.sharding.PartitionSpec
Array = np.ndarray[Any, Any]
MESH = {"x": 2, "y": 2}
DRAWN: Mapping[str, str] = {
    "jax.lax.rng_uniform": "under jax.jit draws other numbers each time it runs, which no two runs can agree on",
}
"""What cannot equal `jax.jit`, and why."""
_information: Any = jnp.finfo
_BATCHES = 36
_CLOSE = 1e-5
"""Of the largest number of a result: most functions are computed in 32 bits, and sum in another order. Results of
fewer bits are as close as two of their last places."""


def _batch(index: int) -> list[str]:
    computing = public_functions().keys() - NO_COMPUTATIONS.keys() - DRAWN.keys()
    return sorted(computing)[index::_BATCHES]


def _together(names: Sequence[str]) -> tuple[Callable[..., Any], list[Array]]:
    """One function that gives what all of them do, keys of random numbers as their words, and its arguments."""

    def run(*arrays: Any) -> dict[str, list[Any]]:
        rest = iter(arrays)
        results = {name: call_of(name).function(*(next(rest) for _ in call_of(name).arrays)) for name in names}
        return {name: [_words(leaf) for leaf in jax.tree.leaves(result)] for name, result in results.items()}

    return run, [a for name in names for a in call_of(name).arrays]


def _words(x: Any) -> Any:
    x = jnp.asarray(x)
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def _split(arrays: Sequence[Array]) -> tuple[Any, ...]:
    """Matrices along both dims, the rest along the first."""
    return tuple(P(*("x", "y")[: a.ndim]) for a in arrays)


def _differences(names: Sequence[str], got: Sequence[Any], want: Mapping[str, Sequence[Any]]) -> list[str]:
    """The functions whose results are not those wanted: integers and random bits exactly, floats but for rounding."""
    rest, wrong = iter(got), []
    for name in sorted(names):
        pairs = [(np.asarray(next(rest)), np.asarray(w)) for w in want[name]]
        if not all(g.shape == w.shape and g.dtype == w.dtype and _is_close(g, w) for g, w in pairs):
            wrong.append(name)
    assert next(rest, None) is None
    return wrong


def _is_close(got: Array, want: Array) -> bool:
    if not jnp.issubdtype(want.dtype, jnp.inexact):
        return bool(np.array_equal(got, want))
    close = max(_CLOSE, 2 * float(_information(want.dtype).eps))
    if want.dtype.kind not in "fc":
        got, want = got.astype(np.float32), want.astype(np.float32)
    largest = np.max(np.abs(want[np.isfinite(want)]), initial=1.0)
    return bool(np.allclose(got, want, rtol=close, atol=close * largest, equal_nan=True))


def _imported(names: Sequence[str]) -> Any:
    """The program of all of them. If that cannot be made, the error of the first function that is to blame."""
    run, arrays = _together(names)
    try:
        return spmdc.from_jax(run, *arrays, mesh=MESH, in_shardings=_split(arrays))
    except spmdc.SpmdcError:
        for name in names if len(names) > 1 else ():
            try:
                _imported([name])
            except spmdc.SpmdcError as problem:
                problem.add_note(f"the function is {name}")
                raise
        raise


@pytest.mark.parametrize("index", [pytest.param(i, marks=pytest.mark.soak if i % 2 else ()) for i in range(_BATCHES)])
def test_partitioned_functions_of_jax_equal_the_evaluated_ones(index: int) -> None:
    names = _batch(index)
    program = _imported(names)
    arrays = _together(names)[1]
    whole = iter(spmdc.evaluate(program, *arrays))
    counts = {
        name: len(jax.tree.leaves(jax.eval_shape(call_of(name).function, *call_of(name).arrays))) for name in names
    }
    want = {name: [next(whole) for _ in range(counts[name])] for name in sorted(names)}
    assert _differences(names, spmdc.partition(program).simulate(*arrays), want) == []


@pytest.mark.soak
@pytest.mark.parametrize("index", range(_BATCHES))
def test_functions_of_jax_on_devices_equal_those_of_jax_jit(index: int) -> None:
    names = _batch(index)
    run, arrays = _together(names)
    want = jax.jit(run)(*arrays)
    got = spmdc.jit(run, mesh=MESH, in_shardings=_split(arrays))(*arrays)
    assert _differences(names, jax.tree.leaves(got), want) == []
    drawn = [name for name in names if name in ("jax.random.uniform", "jax.random.normal", "jax.random.gumbel")]
    assert [n for n in drawn if not all(map(np.array_equal, got[n], want[n]))] == []


@pytest.mark.parametrize("name", DRAWN)
def test_numbers_drawn_without_a_key_are_the_same_on_any_devices(name: str) -> None:
    call = call_of(name)
    program = spmdc.from_jax(call.function, *call.arrays, mesh=MESH, in_shardings=_split(call.arrays))
    (drawn,), (found,) = spmdc.evaluate(program, *call.arrays), spmdc.partition(program).simulate(*call.arrays)
    np.testing.assert_array_equal(found, drawn)
    assert len(np.unique(drawn)) > 1


def test_the_functions_are_all_there_are() -> None:
    """Those that are said not to compute from arrays are not found to do so by any rule."""
    functions = public_functions()
    assert len(functions) > 900
    assert len(DRAWN) < 10
    assert not CALLS.keys() & NO_COMPUTATIONS.keys()
    assert len(functions.keys() - NO_COMPUTATIONS.keys()) > 850
    matrix = np.ones((8, 8), np.float32)
    runnable = [n for n in NO_COMPUTATIONS if n in functions and is_traceable(Call(functions[n], (matrix,)))]
    assert runnable == []
