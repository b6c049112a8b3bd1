"""What is known of integers and booleans before a program runs: bounds, and often every number.

The index arithmetic of an imported program (`select(i < 0, i + n, i)` around every index) mostly has a result that
follows from these facts. Booleans count as 0 and 1. All facts are exact: a result that could wrap is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ir.program import Attr
from ir.types import DType, TensorType

Numbers: TypeAlias = "npt.NDArray[np.object_]"
"""Python integers, of any size."""

MAX_ENUMERATED = 64
"""Tensors of up to this many elements have every number recorded."""

MANY = 1 << 16
"""Constants with more elements are not examined for affine ranges."""


@dataclass(frozen=True, slots=True)
class AffineRange:
    """Integers that change by equal steps along each dim: a start, and a step for each dim, 0 along dims of size 1."""

    start: int
    steps: tuple[int, ...]

    @property
    def is_splat(self) -> bool:
        """Whether all elements are one number."""
        return not any(self.steps)


@dataclass(frozen=True, slots=True, eq=False)
class IntegerFact:
    """Bounds of all elements and, if every element is known, an affine range or the numbers of a small tensor."""

    low: int
    high: int
    grid: AffineRange | None = None
    numbers: Numbers | None = None

    @property
    def is_number(self) -> bool:
        return self.low == self.high


_COUNTED = ("signed", "unsigned", "pred")


def limits(dtype: DType) -> tuple[int, int]:
    """The bounds of an integer type or pred."""
    return int(dtype.lowest), int(dtype.highest)


def is_counted(type: TensorType) -> bool:
    """Whether facts are recorded for such a tensor: it has elements, and they are integers or booleans."""
    return type.dtype.kind in _COUNTED and 0 not in type.shape


def bounded(type: TensorType, low: int, high: int) -> IntegerFact:
    """Elements from `low` to `high`; unbounded if they could wrap."""
    least, most = limits(type.dtype)
    if low < least or high > most:
        low, high = least, most
    return IntegerFact(low, high, AffineRange(low, (0,) * type.rank) if low == high else None)


def on_grid(type: TensorType, start: int, steps: Sequence[int]) -> IntegerFact | None:
    """The elements of an affine range; None if they would wrap."""
    steps = tuple(0 if n == 1 else s for s, n in zip(steps, type.shape, strict=True))
    ends = [s * (n - 1) for s, n in zip(steps, type.shape, strict=True)]
    low, high = start + sum(min(0, e) for e in ends), start + sum(max(0, e) for e in ends)
    least, most = limits(type.dtype)
    return IntegerFact(low, high, AffineRange(start, steps)) if least <= low and high <= most else None


def enumerated(type: TensorType, numbers: Numbers) -> IntegerFact:
    """The fact that a tensor has these elements, all of which the type can hold."""
    numbers = np.asarray(numbers, object).reshape(type.shape)
    grid = grid_of(numbers)
    return IntegerFact(int(numbers.min()), int(numbers.max()), grid, numbers)


def grid_of(numbers: Numbers) -> AffineRange | None:
    """The affine range that these numbers form, if any. There is at least one."""
    first = (0,) * numbers.ndim
    start = int(numbers[first])
    steps = tuple(
        int(numbers[(*first[:d], 1, *first[d + 1 :])]) - start if n > 1 else 0 for d, n in enumerate(numbers.shape)
    )
    grid = AffineRange(start, steps)
    return grid if np.all(_written(grid, numbers.shape) == numbers) else None


def _written(grid: AffineRange, shape: Sequence[int]) -> Numbers:
    numbers: Numbers = np.full(tuple(shape), grid.start, object)
    for d, (n, step) in enumerate(zip(shape, grid.steps, strict=True)):
        if step:
            along = np.array([step * i for i in range(n)], object)
            numbers = numbers + along.reshape(n, *(1,) * (len(shape) - d - 1))
    return numbers


def numbers_of(known: IntegerFact, type: TensorType) -> Numbers | None:
    """Every element, if all are known and they are few."""
    if known.numbers is not None:
        return known.numbers
    return _written(known.grid, type.shape) if known.grid is not None and type.size <= MAX_ENUMERATED else None


def of_literal(type: TensorType, value: Attr) -> IntegerFact:
    """The fact about a constant."""
    if not isinstance(value, tuple):
        assert isinstance(value, int | float), value
        return bounded(type, int(value), int(value))
    written = np.array(value)
    if type.size > MANY:
        return bounded(type, int(written.min()), int(written.max()))
    numbers = np.array([int(v) for v in written.reshape(-1)], object).reshape(type.shape)
    if type.size <= MAX_ENUMERATED:
        return enumerated(type, numbers)
    return IntegerFact(int(numbers.min()), int(numbers.max()), grid_of(numbers))


def literal_of(rows: Any, kind: type[int]) -> Attr:
    """Numbers in nested lists as a constant's value, converted to that Python type."""
    return tuple(literal_of(row, kind) for row in rows) if isinstance(rows, list) else kind(rows)
