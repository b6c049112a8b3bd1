"""Arithmetic on a device's position, folded while it is written.

An `Affine` is a sum of scalars with integer factors. Sums and products of such sums are computed here; ops are written
only for what is used, and for divisions that have a rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ir.builder import RegionBuilder
from ir.program import Value
from ir.types import TensorType, s32
from passes.partition.padding import splat

SCALAR = TensorType((), s32)


@dataclass(frozen=True, eq=False, slots=True)
class Affine:
    """The sum of s32[] values times their factors, and a number."""

    terms: Mapping[Value, int] = field(default_factory=dict[Value, int])
    number: int = 0

    @staticmethod
    def of(value: Value) -> Affine:
        return Affine({value: 1})

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.number + other)
        sums = {v: self.terms.get(v, 0) + other.terms.get(v, 0) for v in (*self.terms, *other.terms)}
        return Affine({v: k for v, k in sums.items() if k}, self.number + other.number)

    def __mul__(self, factor: int) -> Affine:
        return Affine({v: k * factor for v, k in self.terms.items() if factor}, self.number * factor)

    def __sub__(self, other: Affine | int) -> Affine:
        return self + other * -1

    @property
    def is_number(self) -> bool:
        return not self.terms


def written(b: RegionBuilder, a: Affine) -> Value:
    """The sum as a value, s32[]."""
    result: Value | None = None
    rising = sorted(a.terms.items(), key=lambda term: term[1] < 0)
    for value, factor in rising:
        if result is None and factor < 0:
            scaled = b.op("multiply", value, _number(b, -factor), name="at") if factor != -1 else value
            result = b.op("subtract", _number(b, a.number), scaled, name="at")
            a = Affine(a.terms, 0)
            continue
        size = abs(factor)
        scaled = b.op("multiply", value, _number(b, size), name="at") if size != 1 else value
        result = scaled if result is None else b.op("add" if factor > 0 else "subtract", result, scaled, name="at")
    if result is None:
        return _number(b, a.number)
    return b.op("add", result, _number(b, a.number), name="at") if a.number else result


def divided_down(b: RegionBuilder, a: Affine, by: int, lift: int) -> Affine:
    """a // by. `divide` truncates, so to a dividend that may be negative `lift` is added, a multiple of `by`."""
    if all(k % by == 0 for k in a.terms.values()):
        return Affine({v: k // by for v, k in a.terms.items()}, a.number // by)
    quotient = b.op("divide", written(b, a + lift), _number(b, by), name="at")
    return Affine.of(quotient) - lift // by


def divided_up(b: RegionBuilder, a: Affine, by: int, lift: int) -> Affine:
    """The least integer that is not less than a / by."""
    return divided_down(b, a + (by - 1), by, lift)


def clamped(b: RegionBuilder, a: Affine, low: int, high: int) -> Affine:
    """The number from low to high that is nearest to a."""
    if low == high:
        return Affine(number=low)
    if a.is_number:
        return Affine(number=min(max(a.number, low), high))
    return Affine.of(b.op("clamp", _number(b, low), written(b, a), _number(b, high), name="at"))


def _number(b: RegionBuilder, k: int) -> Value:
    return splat(b, k, SCALAR)
