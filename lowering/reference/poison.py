"""The contents of padding in simulations, chosen to reveal a missing mask."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ir.types import Array, DType

Poison = Callable[[DType], Array]
"""Numbers of a type, which the padding of tensors repeats."""

_POISONS = 5


def zeros(dtype: DType) -> Array:
    """Padding without effect in most reductions."""
    return np.zeros(1, dtype.numpy)


def poison_of(seed: int) -> Poison:
    """Padding that is visible wherever it reaches: for seed 0 NaN, extremes and mixed booleans, for others random
    numbers.

    It depends on nothing else, so that it stays the same while a program is shrunk.
    """
    if not seed:
        return _poison
    return lambda dtype: _drawn_poison(dtype, np.random.default_rng(seed))


def _poison(dtype: DType) -> Array:
    if dtype.is_float and dtype.format.has_nan:
        return np.array([np.nan]).astype(dtype.numpy)
    if dtype.is_complex:
        return np.array([complex(np.nan, np.nan)], dtype.numpy)
    if dtype.kind == "pred":
        return np.array([True, False, True, True, False])
    return np.array([dtype.highest, dtype.lowest, dtype.highest], dtype.numpy)


def _drawn_poison(dtype: DType, rng: np.random.Generator) -> Array:
    """Random numbers too, because comparisons with NaN are all false, and a maximum hides everything below it."""
    if dtype.is_complex:
        result = np.empty(_POISONS, dtype.numpy)
        result.real, result.imag = (_drawn_poison(dtype.component, rng) for _ in range(2))
        return result
    if dtype.kind == "pred":
        return rng.integers(0, 2, _POISONS).astype(np.bool_)
    if dtype.is_float:
        choices = np.array([np.nan, np.inf, -np.inf, -0.0, 7.0, dtype.highest, dtype.lowest]).astype(dtype.numpy)
    else:
        choices = np.array([dtype.lowest, dtype.highest, 1], dtype.numpy)
    few = rng.choice(choices, 2)
    return rng.choice(few, _POISONS)
