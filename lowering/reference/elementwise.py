"""Kernels of the elementwise ops, with XLA's meaning where numpy's differs: integer division by zero, shifts by the
width or more, conversions out of range, the sign of zero, NaN in minimum and maximum.

16-bit floats are computed in f32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ir.program import Op
from ir.types import DType, dtype_of
from lowering.reference.registry import Array, Machine, kernel, widen


def _compact(x: Array) -> Array:
    """`x` without the repetitions of a broadcast, contiguous: numpy computes some functions differently on strides."""
    index = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.strides)
    x = x[index]
    return x if x.flags.c_contiguous else x.copy(order="C")


def _unary(name: str, function: Callable[[Array], Any]) -> None:
    def run(op: Op, arrays: Sequence[Array], machine: Machine) -> Sequence[Array]:
        (x,) = arrays
        result = np.asarray(function(widen(_compact(x)))).astype(op.result.dtype.numpy, copy=False)
        return (np.broadcast_to(result, x.shape),)

    kernel(name)(run)


def _binary(name: str, function: Callable[[Array, Array], Any]) -> None:
    def run(op: Op, arrays: Sequence[Array], machine: Machine) -> Sequence[Array]:
        x, y = arrays
        result = np.asarray(function(widen(x), widen(y)))
        return (result.astype(op.result.dtype.numpy, copy=False),)

    kernel(name)(run)


def _unsigned(x: Array) -> Array:
    """The same bits as unsigned integers."""
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def _width(x: Array) -> int:
    return x.dtype.itemsize * 8


def _erf(x: Array) -> Any:
    from scipy import special

    return special.erf(x)


def _logistic(x: Array) -> Any:
    return 1 / (1 + np.exp(-x))


def _rsqrt(x: Array) -> Any:
    return 1 / np.sqrt(x)


def _round_away(x: Array) -> Any:
    whole = np.trunc(x)
    away = whole + np.copysign(np.ones_like(x), x)
    return np.copysign(np.where(np.abs(x - whole) >= 0.5, away, whole), x)


def _sign(x: Array) -> Any:
    return np.where(x == 0, x, np.sign(x))


def _leading_zeros(x: Array) -> Any:
    bits = _unsigned(x)
    for shift in (1, 2, 4, 8, 16, 32):
        if shift < _width(x):
            bits = bits | (bits >> np.array(shift, bits.dtype))
    return _width(x) - np.bitwise_count(bits).astype(np.int64)


_UNARY: dict[str, Callable[[Array], Any]] = {
    "cbrt": np.cbrt,
    "cosine": np.cos,
    "erf": _erf,
    "exponential": np.exp,
    "exponential_minus_one": np.expm1,
    "log": np.log,
    "log_plus_one": np.log1p,
    "logistic": _logistic,
    "rsqrt": _rsqrt,
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
    "popcnt": lambda x: np.bitwise_count(_unsigned(x)),
    "count_leading_zeros": _leading_zeros,
    "is_finite": np.isfinite,
}
for _name, _function in _UNARY.items():
    _unary(_name, _function)


def maximum(x: Array, y: Array) -> Array:
    """The larger; NaN if either is; +0 above -0."""
    result: Array = np.asarray(np.maximum(x, y))
    return _order_zeros(result, x, y, np.add) if result.dtype.kind == "f" else result


def minimum(x: Array, y: Array) -> Array:
    """The smaller; NaN if either is; -0 below +0."""
    result: Array = np.asarray(np.minimum(x, y))
    return _order_zeros(result, x, y, lambda a, b: -(-a - b)) if result.dtype.kind == "f" else result


def _order_zeros(result: Array, x: Array, y: Array, choose: Callable[[Array, Array], Any]) -> Array:
    if not (result == 0).any():
        return result
    zeros = (x == 0) & (y == 0)
    return np.asarray(np.where(zeros, choose(x, y), result)) if zeros.any() else result


def _divide(x: Array, y: Array) -> Any:
    """Integers round towards zero; by zero gives -1 (all ones), and the lowest by -1 itself."""
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
    """With the dividend's sign; an integer by zero leaves the dividend."""
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
    """numpy rounds some functions of two numbers differently on strides."""

    def run(x: Array, y: Array) -> Any:
        return function(*(np.array(z, order="C") for z in np.broadcast_arrays(x, y)))

    return run


def _multiply(x: Array, y: Array) -> Any:
    return _multiply_complex(x, y) if x.dtype.kind == "c" else np.multiply(x, y)


_multiply_complex = _on_contiguous(np.multiply)


def _shift(function: Callable[[Array, Array], Any], signed: bool = False) -> Callable[[Array, Array], Any]:
    """A shift by the width or more, or by a negative number, leaves nothing but copies of the sign, if signed."""

    def shift(x: Array, y: Array) -> Any:
        last = np.array(_width(x) - 1, _unsigned(y).dtype)
        amount = np.minimum(_unsigned(y), last)
        bits = x.view(np.dtype(f"i{x.dtype.itemsize}")) if signed else _unsigned(x)
        shifted = np.asarray(function(bits, amount.astype(bits.dtype))).view(x.dtype)
        return shifted if signed else np.where(_unsigned(y) > last, np.array(0, x.dtype), shifted)

    return shift


_BINARY: dict[str, Callable[[Array, Array], Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": _multiply,
    "divide": _divide,
    "remainder": _remainder,
    "power": _on_contiguous(_power),
    "atan2": _on_contiguous(np.arctan2),
    "maximum": maximum,
    "minimum": minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shift_left": _shift(np.left_shift),
    "shift_right_arithmetic": _shift(np.right_shift, signed=True),
    "shift_right_logical": _shift(np.right_shift),
}
for _name, _function2 in _BINARY.items():
    _binary(_name, _function2)


_COMPARISONS: dict[str, Callable[[Array, Array], Any]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


@kernel("compare")
def _compare(op: Op, arrays: Sequence[Array], machine: Machine) -> Sequence[Array]:
    x, y = arrays
    return (np.asarray(_COMPARISONS[str(op.attrs["direction"])](widen(x), widen(y))),)


def _fit(scalar: Array, rank: int, lead: int) -> Array:
    """A scalar on every device as a tensor of that rank; a tensor as it is."""
    return scalar if scalar.ndim > lead else scalar.reshape((*scalar.shape, *(1,) * rank))


@kernel("select")
def _select(op: Op, arrays: Sequence[Array], machine: Machine) -> Sequence[Array]:
    which, on_true, on_false = arrays
    return (np.where(_fit(which, op.result.type.rank, machine.lead), on_true, on_false),)


@kernel("clamp")
def _clamp(op: Op, arrays: Sequence[Array], machine: Machine) -> Sequence[Array]:
    low, x, high = (widen(_fit(a, op.result.type.rank, machine.lead)) for a in arrays)
    return (minimum(maximum(x, low), high).astype(op.result.dtype.numpy, copy=False),)


def convert(x: Array, dtype: DType) -> Array:
    """To another element type: floats to integers saturate, NaN becomes 0, integers wrap, nonzero is true, complex
    numbers lose their imaginary part."""
    source = dtype_of(x.dtype)
    if source == dtype:
        return x
    if source.is_complex and not dtype.is_complex:
        return convert(x.real, dtype)
    if source.is_float and dtype.kind == "pred":
        return np.asarray(widen(x) != 0)
    if source.is_float and dtype.is_integer:
        return _saturate(widen(x), dtype)
    if dtype.is_float and dtype.bits == 16 and source.is_float:
        return x.astype(np.float32).astype(dtype.numpy)
    return x.astype(dtype.numpy)


def _saturate(x: Array, dtype: DType) -> Array:
    low, high = int(dtype.lowest), int(dtype.highest)
    result = np.where((x > low) & (x < high), x, 0).astype(dtype.numpy)
    result[x >= high] = high
    result[x <= low] = low
    return result


@kernel("convert")
def _convert(op: Op, arrays: Sequence[Array], machine: Machine) -> Sequence[Array]:
    x = arrays[0]
    return (np.broadcast_to(convert(_compact(x), op.result.dtype), x.shape),)
