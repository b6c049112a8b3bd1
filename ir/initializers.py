"""What the weights of a program hold before training: one number, or numbers that are drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ir.types import DType

Number = int | float | bool

DRAWN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"normal": ("stddev",), "truncated_normal": ("stddev",), "uniform": ("low", "high")}
)
"""The distributions, and what specifies each. Normal ones have mean 0. A truncated one ends two standard deviations
from it, where `stddev` is that of the normal distribution that is cut, as in jax.nn.initializers."""


@dataclass(frozen=True, slots=True)
class Initializer:
    """One number for all elements, if `distribution` is empty, or one of `DRAWN` with its numbers."""

    distribution: str
    numbers: tuple[Number, ...]


def initializer_problem(distribution: str, numbers: Sequence[float], dtype: DType) -> str:
    """Why elements of that type cannot be drawn so; empty if they can."""
    if not dtype.is_float or not dtype.has_zero:
        return f"what is drawn are floats, and the elements are {dtype}"
    if not all(map(math.isfinite, numbers)):
        return f"{distribution} takes finite numbers"
    if distribution == "uniform":
        low, high = numbers
        return "" if low <= high else f"there is no number from {low} to {high}"
    return "" if numbers[0] >= 0 else f"no standard deviation is negative, and this is {numbers[0]}"
