"""Functions of jax.numpy, drawn at random: imported, simplified and partitioned, they compute what jax.jit does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from drawn import examples
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jax_functions import MESH, SHAPES, Function, functions

import spmdc

_IN_A_MODULE = 10
_jit: Any = jax.jit
_QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def _differing(drawn: Sequence[Function], seed: int) -> list[int]:
    """Which of the functions, in one module, differ as they are imported, or partitioned."""
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(-4, 5, shape).astype(np.int32 if i == 1 else np.float32) for i, shape in enumerate(SHAPES)]

    def together(first: Any, *others: Any) -> list[tuple[Any, ...]]:
        return [function(first + n, *others) for n, function in enumerate(drawn)]

    want = _jit(together, compiler_options=_QUICKLY)(*arrays)
    flat = [(n, np.asarray(x)) for n, results in enumerate(want) for x in results]
    program = spmdc.from_jax(together, *arrays, mesh=MESH)
    both = spmdc.evaluate(program, *arrays), spmdc.partition(program).simulate(*arrays)
    return sorted({n for got in both for (n, x), y in zip(flat, got, strict=True) if not _alike(x, y)})


def _alike(x: Any, y: Any) -> bool:
    return x.dtype == y.dtype and np.array_equal(x.astype(np.float64), y.astype(np.float64), equal_nan=True)


@settings(max_examples=examples(5), phases=(Phase.explicit, Phase.generate), deadline=None)
@given(st.lists(functions(), min_size=_IN_A_MODULE, max_size=_IN_A_MODULE), st.integers(0, 1000))
def test_functions_compute_what_jax_computes_once_imported_and_partitioned(drawn: list[Function], seed: int) -> None:
    found = _differing(drawn, seed)
    assert not found, f"{[drawn[n] for n in found]}; alone: {[_differing([drawn[n]], seed) for n in found]}"
