"""The initial values of a program's weights: one number, or random numbers."""

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
"""The distributions with their parameters. Normal ones have mean 0. The truncated one is cut two standard deviations
from it, where `stddev` is that of the distribution before it is cut, as in jax.nn.initializers."""


@dataclass(frozen=True, slots=True)
class Initializer:
    """One number for all elements if `distribution` is empty, or a distribution of `DRAWN` with its parameters."""

    distribution: str
    numbers: tuple[Number, ...]


def initializer_problem(distribution: str, numbers: Sequence[float], dtype: DType) -> str:
    """Why elements of that type cannot be initialized so; empty if they can."""
    if not dtype.is_float or not dtype.has_zero:
        return f"what is drawn are floats, and the elements are {dtype}"
    if not all(map(math.isfinite, numbers)):
        return f"{distribution} takes finite numbers"
    if distribution == "uniform":
        low, high = numbers
        return "" if low <= high else f"there is no number from {low} to {high}"
    return "" if numbers[0] >= 0 else f"no standard deviation is negative, and this is {numbers[0]}"
