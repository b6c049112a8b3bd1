"""The differences between the results of two runs of a program, and the largest that rounding explains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ir.ops import OPS
from ir.program import Op, Program, Result, Value, callee_of, callees_first, used_around
from ir.types import Array, DType, dtype_of, f32

_ROUNDINGS = 256
_ROUNDINGS_OF_16_BITS = 8
_ROUNDINGS_OF_8_BITS = 1
"""Sums in another order differ by some units in the last place; more than this is no rounding. 16-bit floats have so
few places that what 256 units allow is no check, those of 8 bits and fewer so few that what 8 units allow is none."""

_MOVING = ("control", "creation", "layout", "plan", "sorting")
"""The families of ops that round nothing themselves."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of one result between two runs: the largest absolute difference, the most that rounding explains,
    and the largest magnitude (`scale`) of the expected result.

    Results of different shapes, which `shapes` then has, have an infinite difference.
    """

    name: str
    largest: float
    tolerance: float
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    scale: float = 0.0

    @property
    def is_rounding(self) -> bool:
        return self.largest <= self.tolerance


def result_names(results: Sequence[Result]) -> list[str]:
    """A name for each result; those without one, or with a duplicate one, are numbered."""
    names = [r.name for r in results]
    return [n if n and names.count(n) == 1 else f"{n or 'result'}.{i}" for i, n in enumerate(names)]


def differences(program: Program, got: Sequence[npt.ArrayLike], expected: Sequence[npt.ArrayLike]) -> list[Difference]:
    """The difference of each result of a program from the expected one. Integers and booleans have no rounding. Numbers
    are as precise as the least precise type in which something that they depend on was rounded."""
    results, rounded = program.main.results, types_of_roundings(program)
    named = zip(result_names(results), results, rounded, got, expected, strict=True)
    return [difference(name, r.type.dtype, np.asarray(a), np.asarray(b), least) for name, r, least, a, b in named]


def difference(name: str, dtype: DType, got: Array, expected: Array, rounded: DType | None = None) -> Difference:
    """The difference of one result, for which numbers of the type `rounded` were rounded."""
    if got.shape != expected.shape:
        return Difference(name, float("inf"), 0.0, (got.shape, expected.shape))
    if dtype.is_complex:
        return _complex_difference(name, dtype, got, expected, rounded)
    if not dtype.is_float:
        unequal = got != expected
        apart = np.abs(got[unequal].astype(np.float64) - expected[unequal].astype(np.float64))
        return Difference(name, float(apart.max(initial=0.0)), 0.0, scale=_scale(expected.astype(np.float64)))
    a, b = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.where(are_same(a, b), 0.0, np.abs(a - b))
    largest = float(np.nan_to_num(apart, nan=np.inf).max(initial=0.0))
    least = _least_precise((dtype, rounded)) or dtype
    return Difference(name, largest, _relative_tolerance(least) * _scale(b), scale=_scale(b))


def _scale(x: Array) -> float:
    return float(np.abs(x[np.isfinite(x)]).max(initial=0.0))


def _complex_difference(name: str, dtype: DType, got: Array, expected: Array, rounded: DType | None) -> Difference:
    """The difference of the part that differs more. Both parts have the precision of the larger numbers."""
    pairs = ((got.real, expected.real), (got.imag, expected.imag))
    parts = [difference(name, dtype.component, a, b, rounded) for a, b in pairs]
    largest, tolerance = max(p.largest for p in parts), max(p.tolerance for p in parts)
    return Difference(name, largest, tolerance, scale=max(p.scale for p in parts))


def types_of_roundings(program: Program) -> list[DType | None]:
    """For each result, the least precise type in which an op that it depends on rounds; None if none does."""
    functions: dict[str, DType | None] = {}
    for function in callees_first(program):
        functions[function.name] = _least_precise(_rounds_in(op, functions) for op in function.body.ops)
    known: dict[Value, DType | None] = {}
    for op in program.main.body.ops:
        given = [known.get(value) for value in (*op.operands, *used_around(op))]
        known.update(dict.fromkeys(op.results, _least_precise([_rounds_in(op, functions), *given])))
    return [known.get(value) for value in program.main.body.results]


def _rounds_in(op: Op, functions: Mapping[str, DType | None]) -> DType | None:
    """The least precise type in which an op, or one inside it, rounds. Ops that move elements round none."""
    inside = [_least_precise(_rounds_in(each, functions) for each in region.ops) for region in op.regions]
    opdef = OPS[op.name]
    moves = opdef.family in _MOVING or (opdef.family == "indexing" and opdef.terms is None)
    own = [value.dtype.component for value in op.results if value.dtype.is_continuous and not moves]
    return _least_precise([functions.get(callee_of(op) or ""), *inside, *own])


def _least_precise(types: Iterable[DType | None]) -> DType | None:
    floats = (dtype for dtype in types if dtype is not None and dtype.is_float)
    return min(floats, key=lambda dtype: dtype.format.mantissa_bits, default=None)


def _relative_tolerance(dtype: DType) -> float:
    roundings = _ROUNDINGS if dtype.bits > 16 else _ROUNDINGS_OF_16_BITS if dtype.bits == 16 else _ROUNDINGS_OF_8_BITS
    return roundings * 2.0**-dtype.format.mantissa_bits


def same_numbers(a: Array, b: Array) -> bool:
    """Whether all elements are equal, or both NaN. Zeros are equal, whatever their signs."""
    return bool(are_same(a, b).all())


def without_subnormals(x: Array) -> Array:
    """The elements, with 0 for subnormal ones, which XLA's CPU treats as 0, except in types with fewer exponents, which
    it computes in larger ones."""
    if x.dtype.kind == "c":
        parts = np.empty_like(x)
        parts.real, parts.imag = without_subnormals(x.real), without_subnormals(x.imag)
        return parts
    dtype = dtype_of(x.dtype)
    if not dtype.is_float or not dtype.format.has_zero or dtype.format.smallest > f32.format.smallest:
        return x
    return np.where(np.abs(x) < dtype.format.smallest, np.zeros_like(x), x)


def are_same(a: Array, b: Array) -> Array:
    """For each element, whether the two are equal, or both NaN."""
    return np.asarray((a == b) | ((a != a) & (b != b)))
