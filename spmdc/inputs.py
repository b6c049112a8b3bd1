"""Random inputs."""

from __future__ import annotations

import numpy as np

from ir.program import Program
from ir.types import Array, TensorType
from spmdc.arguments import program_of, require_seed


def random_inputs(program: Program, seed: int, integers: bool = False) -> tuple[Array, ...]:
    """An array for each parameter of the entry, with its global shape.

    Floats are normal with a scale of 1/sqrt(last dim but one), like initial weights. With `integers` they are integers
    from -4 to 4, and for types of 8 bits and fewer from -1 to 1, whose sums are exact in any order. Integers are small,
    booleans equally likely; for types of powers of two only, all numbers are small ones. Raises SpmdcError (E601).
    """
    require_seed(seed)
    rng = np.random.default_rng(seed)
    return tuple(_draw(rng, p.of or p.type, integers) for p in program_of(program).main.params)


def _draw(rng: np.random.Generator, type: TensorType, integers: bool) -> Array:
    dtype = type.dtype
    if dtype.kind == "pred":
        return rng.integers(0, 2, type.shape).astype(np.bool_)
    if dtype.is_complex:
        part = type.with_dtype(dtype.component)
        real, imaginary = _draw(rng, part, integers), _draw(rng, part, integers)
        return (real + 1j * imaginary).astype(dtype.numpy)
    if not dtype.has_zero:
        return np.exp2(rng.integers(0, 2, type.shape) if integers else rng.integers(-3, 4, type.shape)).astype(
            dtype.numpy
        )
    if dtype.is_float and not integers:
        scale = 1.0 / np.sqrt(max(1, type.shape[-2])) if type.rank >= 2 else 1.0
        return (rng.standard_normal(type.shape) * scale).astype(dtype.numpy)
    most = 1 if dtype.is_float and dtype.bits < 16 else 4
    low, high = max(-most, dtype.lowest), min(most, dtype.highest)
    return rng.integers(int(low), int(high) + 1, type.shape).astype(dtype.computed.numpy).astype(dtype.numpy)
