"""Kernels of complex numbers and of the bits of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ir.ops.rule_helpers import int_attr
from ir.program import Op
from ir.types import Array, DType, f16, f32
from lowering.reference.arrays import bits_of, widen
from lowering.reference.interpreter import Interpreter, kernel
from lowering.reference.ops.elementwise import convert


@kernel("complex")
def _complex(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    real, imaginary = np.broadcast_arrays(*arrays)
    result = np.empty(real.shape, op.result.dtype.numpy)
    result.real, result.imag = real, imaginary
    return (result,)


@kernel("real")
def _real(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    return (arrays[0].real if op.operands[0].dtype.is_complex else arrays[0],)


@kernel("imag")
def _imag(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    (x,) = arrays
    return (x.imag if op.operands[0].dtype.is_complex else np.zeros_like(x),)


@kernel("abs")
def _abs(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    return (np.abs(widen(arrays[0])).astype(op.result.dtype.numpy, copy=False),)


@kernel("bitcast_convert")
def _bitcast_convert(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    (x,) = arrays
    source, target = op.operands[0].dtype, op.result.dtype
    if source == target:
        return (x,)
    word = np.dtype(f"u{target.numpy.itemsize}")
    bits = bits_of(x)
    if source.bits > target.bits:
        places = np.arange(0, source.bits, target.bits, dtype=bits.dtype)
        bits = (bits[..., np.newaxis] >> places) & bits.dtype.type((1 << target.bits) - 1)
    elif source.bits < target.bits:
        places = np.arange(0, target.bits, source.bits, dtype=word)
        bits = np.bitwise_or.reduce(bits.astype(word) << places, -1)
    return (np.asarray(bits).astype(word).view(target.numpy),)


@kernel("reduce_precision")
def _reduce_precision(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    dtype = op.result.dtype
    return (
        reduce_precision(arrays[0], dtype, int_attr(op.attrs, "exponent_bits"), int_attr(op.attrs, "mantissa_bits")),
    )


def reduce_precision(x: Array, dtype: DType, exponent_bits: int, mantissa_bits: int) -> Array:
    """`x` rounded to the nearest number of such a format, ties to even, as in XLA: on the bits, for shorter floats on
    those of the shortest type of 16 bits or more that has all of their numbers."""
    if dtype.bits < 16:
        holds = f16 if dtype.format.highest <= f16.format.highest else f32
        return convert(reduce_precision(convert(x, holds), holds, exponent_bits, mantissa_bits), dtype)
    own_mantissa, own_exponent = dtype.format.mantissa_bits, dtype.format.exponent_bits
    word = np.dtype(f"u{dtype.numpy.itemsize}")
    bits = x.copy(order="C").view(word)
    infinity = word.type(((1 << own_exponent) - 1) << own_mantissa)
    sign = bits & word.type(1 << (dtype.bits - 1))
    if mantissa_bits < own_mantissa:
        step = own_mantissa - mantissa_bits
        last = (bits >> word.type(step)) & word.type(1)
        bits = (bits + last + word.type((1 << (step - 1)) - 1)) & word.type(~((1 << step) - 1) % (1 << dtype.bits))
    if exponent_bits < own_exponent:
        bias, reduced = (1 << (own_exponent - 1)) - 1, (1 << (exponent_bits - 1)) - 1
        exponent = bits & infinity
        bits = np.where(exponent > word.type((bias + reduced) << own_mantissa), sign | infinity, bits)
        bits = np.where(exponent <= word.type((bias - reduced) << own_mantissa), sign, bits)
    rounded = bits.view(dtype.numpy)
    return np.where(np.isnan(x), x, rounded)
