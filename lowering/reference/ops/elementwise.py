"""Kernels of the elementwise ops, with XLA's meaning where numpy's differs: integer division by zero, shifts by the
width or more, conversions out of range, the sign of zero, NaN in minimum and maximum.

Floats of 16 bits and fewer are computed in f32 and rounded once, integers of 4 and 2 bits in 8 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ir.ops.elementwise import COMPARES
from ir.program import Op
from ir.types import Array, DType, dtype_of
from lowering.reference.arrays import bits_of, order_zeros, widen
from lowering.reference.interpreter import Interpreter, kernel


def _compact(x: Array) -> Array:
    """`x` without broadcast repetitions, contiguous: numpy computes some functions differently on strided arrays."""
    index = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.strides)
    x = x[index]
    return x if x.flags.c_contiguous else x.copy(order="C")


def _unary(name: str, function: Callable[[Array], Any]) -> None:
    def run(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
        (x,) = arrays
        result = np.asarray(function(widen(_compact(x)))).astype(op.result.dtype.numpy, copy=False)
        return (np.broadcast_to(result, x.shape),)

    kernel(name)(run)


def _binary(name: str, function: Callable[[Array, Array], Any]) -> None:
    def run(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
        x, y = arrays
        result = np.asarray(function(widen(x), widen(y)))
        return (result.astype(op.result.dtype.numpy, copy=False),)

    kernel(name)(run)


def _of_bits(name: str, function: Callable[..., Any]) -> None:
    """Registers `function`, which takes the bits of integers as unsigned integers, and the number of bits of an
    element."""

    def run(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
        dtype = op.result.dtype
        result = np.asarray(function(*(bits_of(_compact(x)) for x in arrays), dtype.bits))
        shape = np.broadcast_shapes(*(x.shape for x in arrays))
        return (np.broadcast_to(result.astype(f"u{dtype.numpy.itemsize}"), shape).astype(dtype.numpy),)

    kernel(name)(run)


def _erf(x: Array) -> Any:
    # Imported late: scipy takes as long to load as all kernels together.
    from scipy import special

    return special.erf(x)


def _round_away(x: Array) -> Any:
    whole = np.trunc(x)
    away = whole + np.copysign(np.ones_like(x), x)
    return np.copysign(np.where(np.abs(x - whole) >= 0.5, away, whole), x)


def _sign(x: Array) -> Any:
    return np.where(x == 0, x, np.sign(x))


def _leading_zeros(bits: Array, width: int) -> Any:
    for shift in (1, 2, 4, 8, 16, 32):
        if shift < width:
            bits = bits | (bits >> np.array(shift, bits.dtype))
    return width - np.bitwise_count(bits).astype(np.int64)


_UNARY: dict[str, Callable[[Array], Any]] = {
    "cbrt": np.cbrt,
    "cosine": np.cos,
    "erf": _erf,
    "exponential": np.exp,
    "exponential_minus_one": np.expm1,
    "log": np.log,
    "log_plus_one": np.log1p,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sine": np.sin,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "ceil": np.ceil,
    "floor": np.floor,
    "round_nearest_afz": _round_away,
    "round_nearest_even": np.rint,
    "sign": _sign,
    "negate": np.negative,
    "not": np.invert,
    "is_finite": np.isfinite,
    "stop_gradient": np.asarray,
}
for _name, _function in _UNARY.items():
    _unary(_name, _function)


def extreme(x: Array, y: Array, *, largest: bool) -> Array:
    """The larger, or the smaller; NaN if either is; +0 above -0."""
    result: Array = np.asarray(np.maximum(x, y) if largest else np.minimum(x, y))
    return order_zeros(result, (x, y), np.logical_or, largest=largest)


def _divide(x: Array, y: Array) -> Any:
    """Integers round towards zero. Division by zero returns -1 (all bits set), and the lowest number divided by -1
    itself."""
    if x.dtype.kind in "fc":
        return x / y
    divisor = np.where(y == 0, np.ones_like(y), y)
    if x.dtype.kind == "u":
        return np.where(y == 0, np.array(np.iinfo(x.dtype).max, x.dtype), x // divisor)
    minus = divisor == -1
    divisor = np.where(minus, np.ones_like(y), divisor)
    quotient = (x - np.fmod(x, divisor)) // divisor
    return np.where(y == 0, np.array(-1, x.dtype), np.where(minus, np.negative(x), quotient))


def _remainder(x: Array, y: Array) -> Any:
    """The remainder has the dividend's sign. For integers, a zero divisor returns the dividend."""
    if x.dtype.kind == "f":
        return np.fmod(x, y)
    trivial = (y == 0) | (y == -1) if x.dtype.kind == "i" else y == 0
    rest = np.fmod(x, np.where(trivial, np.ones_like(y), y))
    return np.where(y == 0, x, np.where(trivial, np.zeros_like(x), rest))


def _power(x: Array, y: Array) -> Any:
    """An integer to a negative power is 0 unless its magnitude is 1."""
    if x.dtype.kind in "fuc":
        return np.power(x, y)
    one, zero = np.array(1, x.dtype), np.array(0, x.dtype)
    alternating = np.where(y & one == one, x, one)
    inverse = np.where(x == -1, alternating, np.where(x == 1, one, zero))
    return np.where(y < 0, inverse, np.power(x, np.maximum(y, zero)))


def _on_contiguous(function: Callable[[Array, Array], Any]) -> Callable[[Array, Array], Any]:
    """Makes operands contiguous, because numpy rounds some functions of two numbers differently on strided arrays. It
    takes those of one element for such, so they get a second one."""

    def run(x: Array, y: Array) -> Any:
        x, y = np.broadcast_arrays(x, y)
        if x.size == 1:
            return function(np.resize(x, 2), np.resize(y, 2))[:1].reshape(x.shape)
        return function(np.array(x, order="C"), np.array(y, order="C"))

    return run


def _multiply(x: Array, y: Array) -> Any:
    return _multiply_complex(x, y) if x.dtype.kind == "c" else np.multiply(x, y)


_multiply_complex = _on_contiguous(np.multiply)


def _shift_left(bits: Array, by: Array, width: int) -> Any:
    """A shift by the width or more, or by a negative number, leaves nothing."""
    last = bits.dtype.type(width - 1)
    return np.where(by > last, bits.dtype.type(0), np.left_shift(bits, np.minimum(by, last)))


def _shift_right_logical(bits: Array, by: Array, width: int) -> Any:
    last = bits.dtype.type(width - 1)
    return np.where(by > last, bits.dtype.type(0), np.right_shift(bits, np.minimum(by, last)))


def _shift_right_arithmetic(bits: Array, by: Array, width: int) -> Any:
    """A shift by the width or more, or by a negative number, leaves nothing but copies of the sign."""
    signed = np.dtype(f"i{bits.dtype.itemsize}")
    unused = bits.dtype.itemsize * 8 - width
    placed = np.left_shift(bits, bits.dtype.type(unused)).view(signed)
    amount = np.minimum(by, bits.dtype.type(width - 1)).astype(signed)
    return np.right_shift(placed, amount + signed.type(unused)).view(bits.dtype)


_BINARY: dict[str, Callable[[Array, Array], Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": _multiply,
    "divide": _divide,
    "remainder": _remainder,
    "power": _on_contiguous(_power),
    "atan2": _on_contiguous(np.arctan2),
    "maximum": partial(extreme, largest=True),
    "minimum": partial(extreme, largest=False),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
for _name, _function2 in _BINARY.items():
    _binary(_name, _function2)

_OF_BITS: dict[str, Callable[..., Any]] = {
    "popcnt": lambda bits, width: np.bitwise_count(bits),
    "count_leading_zeros": _leading_zeros,
    "shift_left": _shift_left,
    "shift_right_arithmetic": _shift_right_arithmetic,
    "shift_right_logical": _shift_right_logical,
}
for _name, _function3 in _OF_BITS.items():
    _of_bits(_name, _function3)


@kernel("compare")
def _compare(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    x, y = arrays
    return (np.asarray(COMPARES[str(op.attrs["direction"])](widen(x), widen(y))),)


def _fit(scalar: Array, rank: int, lead: int) -> Array:
    """A scalar on every device as a tensor of that rank; a tensor unchanged."""
    return scalar if scalar.ndim > lead else scalar.reshape((*scalar.shape, *(1,) * rank))


@kernel("select")
def _select(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    which, on_true, on_false = arrays
    return (np.where(_fit(which, op.result.type.rank, machine.lead), on_true, on_false),)


@kernel("clamp")
def _clamp(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    low, x, high = (widen(_fit(a, op.result.type.rank, machine.lead)) for a in arrays)
    return (extreme(extreme(x, low, largest=True), high, largest=False).astype(op.result.dtype.numpy, copy=False),)


def convert(x: Array, dtype: DType) -> Array:
    """Converts to another element type: floats to integers saturate, NaN becomes 0, integers wrap, nonzero is true,
    complex numbers lose their imaginary part."""
    source = dtype_of(x.dtype)
    if source == dtype:
        return x
    if source.is_complex and not dtype.is_complex:
        return convert(x.real, dtype)
    x = widen(x)
    if dtype.kind == "pred":
        return np.asarray(x != 0)
    if source.is_float and dtype.is_integer:
        return _saturate(x, dtype)
    if dtype.is_integer and dtype.bits < 8:
        return x.astype(dtype.computed.numpy).astype(dtype.numpy)
    if dtype.is_float and dtype.bits < 32 and (source.is_float or dtype.bits < 16):
        return _rounded(x.astype(np.float32), dtype)
    return x.astype(dtype.numpy)


def _rounded(x: Array, dtype: DType) -> Array:
    """Rounds to a short type. In a type without NaN, NaN becomes -0.0."""
    return (x if dtype.format.has_nan else np.where(np.isnan(x), np.float32(-0.0), x)).astype(dtype.numpy)


def _saturate(x: Array, dtype: DType) -> Array:
    low, high = int(dtype.lowest), int(dtype.highest)
    result = np.where((x > low) & (x < high), x, 0).astype(dtype.computed.numpy)
    result[x >= high] = high
    result[x <= low] = low
    return result.astype(dtype.numpy, copy=False)


@kernel("convert")
def _convert(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    x = arrays[0]
    return (np.broadcast_to(convert(_compact(x), op.result.dtype), x.shape),)
