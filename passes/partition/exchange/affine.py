"""Arithmetic on a device's position, folded while it is written.

An `Affine` is a linear combination of scalars with integer factors and known bounds. Sums and products of these are
computed here. Ops are written only for results that are used, and for divisions and clamps whose result is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ir.builder import RegionBuilder
from ir.mesh import Axes, axes_size
from ir.program import Value
from passes.partition.shards import integer, shard_index


@dataclass(frozen=True, eq=False, slots=True)
class Affine:
    """The sum of s32[] values times their factors, and a constant. Each value is within its `bounds`."""

    terms: Mapping[Value, int] = field(default_factory=dict[Value, int])
    number: int = 0
    bounds: Mapping[Value, tuple[int, int]] = field(default_factory=dict[Value, tuple[int, int]])

    @staticmethod
    def of(value: Value, low: int, high: int) -> Affine:
        """The value itself, which is from low to high."""
        return Affine({value: 1}, 0, {value: (low, high)})

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.number + other, self.bounds)
        sums = {v: self.terms.get(v, 0) + other.terms.get(v, 0) for v in (*self.terms, *other.terms)}
        return Affine({v: k for v, k in sums.items() if k}, self.number + other.number, {**self.bounds, **other.bounds})

    def __mul__(self, factor: int) -> Affine:
        return Affine({v: k * factor for v, k in self.terms.items() if factor}, self.number * factor, self.bounds)

    def __sub__(self, other: Affine | int) -> Affine:
        return self + other * -1

    @property
    def is_number(self) -> bool:
        return not self.terms

    @property
    def low(self) -> int:
        """A lower bound."""
        return self.number + sum(k * self.bounds[v][k < 0] for v, k in self.terms.items())

    @property
    def high(self) -> int:
        """An upper bound."""
        return self.number + sum(k * self.bounds[v][k > 0] for v, k in self.terms.items())


def position(b: RegionBuilder, axes: Axes) -> Affine:
    """The device's position along the axes."""
    return Affine.of(shard_index(b, axes), 0, axes_size(axes) - 1)


def written(b: RegionBuilder, a: Affine) -> Value:
    """The sum as a value, s32[]."""
    result: Value | None = None
    rising = sorted(a.terms.items(), key=lambda term: term[1] < 0)
    for value, factor in rising:
        if result is None and factor < 0:
            scaled = b.op("multiply", value, integer(b, -factor), name="at") if factor != -1 else value
            result = b.op("subtract", integer(b, a.number), scaled, name="at")
            a = Affine(a.terms, 0, a.bounds)
            continue
        size = abs(factor)
        scaled = b.op("multiply", value, integer(b, size), name="at") if size != 1 else value
        result = scaled if result is None else b.op("add" if factor > 0 else "subtract", result, scaled, name="at")
    if result is None:
        return integer(b, a.number)
    return b.op("add", result, integer(b, a.number), name="at") if a.number else result


def divided_down(b: RegionBuilder, a: Affine, by: int) -> Affine:
    """a // by. `divide` truncates, so a dividend that may be negative is first raised above zero."""
    if all(k % by == 0 for k in a.terms.values()):
        return Affine({v: k // by for v, k in a.terms.items()}, a.number // by, a.bounds)
    low, high = a.low // by, a.high // by
    if low == high:
        return Affine(number=low)
    lift = max(0, -low)
    quotient = b.op("divide", written(b, a + lift * by), integer(b, by), name="at")
    return Affine.of(quotient, low + lift, high + lift) - lift


def divided_up(b: RegionBuilder, a: Affine, by: int) -> Affine:
    """The least integer that is not less than a / by."""
    return divided_down(b, a + (by - 1), by)


def clamped(b: RegionBuilder, a: Affine, low: int, high: int) -> Affine:
    """The number from low to high that is nearest to a."""
    if low <= a.low and a.high <= high:
        return a
    if low == high or a.high <= low or a.low >= high:
        return Affine(number=low if a.high <= low else high)
    return Affine.of(b.op("clamp", integer(b, low), written(b, a), integer(b, high), name="at"), low, high)
