"""Elementwise ops, most of which have the same name here."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir as mlir

from ir.program import Value
from ir.types import DTYPES, DType, pred
from spmdc.frontends.stablehlo.attributes import int_of, word_of
from spmdc.frontends.stablehlo.scope import CONVERTERS, Scope, converts

_SAME = (
    "abs", "add", "and", "cbrt", "ceil", "clamp", "complex", "cosine", "count_leading_zeros", "divide", "erf",
    "exponential", "exponential_minus_one", "floor", "imag", "is_finite", "log", "log_plus_one", "logistic", "maximum",
    "minimum", "multiply", "negate", "not", "or", "popcnt", "power", "real", "remainder", "round_nearest_afz",
    "round_nearest_even", "rsqrt", "select", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign",
    "sine", "sqrt", "subtract", "tan", "tanh", "xor",
)  # fmt: skip

_LOGICAL = {"add": "or", "multiply": "and", "maximum": "or", "minimum": "and", "subtract": "xor"}
"""Arithmetic on booleans as logical ops: XLA's PRED has one-bit sums and products."""


def _same(op: mlir.Operation, scope: Scope) -> Value:
    name = op.name.partition(".")[2]
    operands = scope.operands(op)
    if name in _LOGICAL and operands[0].dtype == pred:
        name = _LOGICAL[name]
    result = _position(scope, name, operands) if scope.positions and name in ("divide", "remainder") else None
    return scope.emit(name, *operands) if result is None else result


def _position(scope: Scope, name: str, operands: Sequence[Value]) -> Value | None:
    """A device's position along an axis, which JAX computes as `number // stride % size`; None for other arithmetic."""
    stride, by = scope.positions.get(operands[0]), scope.number(operands[1])
    if stride is None or not isinstance(by, int):
        return None
    if name == "divide":
        result = scope.emit(name, *operands)
        scope.positions[result] = stride * by
        return result
    behind = 1
    for axis in reversed(scope.module.shardings.meshes[0].whole_axes()):
        if (behind, axis.size) == (stride, by) and axis.name in scope.manual:
            index = scope.emit("axis_index", axes=(axis,))
            result = scope.emit("convert", index, dtype=operands[0].dtype)
            scope.narrowed[result] = index
            return result
        behind *= axis.size
    return None


for _name in _SAME:
    CONVERTERS[_name] = _same


@converts("atan2")
def _atan2(op: mlir.Operation, scope: Scope) -> Value:
    """For complex numbers, `-i log((x + iy) / sqrt(x² + y²))`, as XLA has it."""
    y, x = scope.operands(op)
    if not x.dtype.is_complex:
        return scope.emit("atan2", y, x)
    emit = scope.emit
    turned = emit("complex", emit("negate", emit("imag", y)), emit("real", y))
    length = emit("sqrt", emit("add", emit("multiply", x, x), emit("multiply", y, y)))
    angle = emit("log", emit("divide", emit("add", x, turned), length))
    return emit("complex", emit("imag", angle), emit("negate", emit("real", angle)))


@converts("compare")
def _compare(op: mlir.Operation, scope: Scope) -> Value:
    attributes = op.attributes
    left, right = scope.operands(op)
    direction = word_of(attributes["comparison_direction"])
    if "compare_type" in attributes and word_of(attributes["compare_type"]) == "TOTALORDER" and left.dtype.is_float:
        left, right = total_order_key(scope, left), total_order_key(scope, right)
    return scope.emit("compare", left, right, direction=direction)


def total_order_key(scope: Scope, value: Value) -> Value:
    """Integers in the total order of the floats: -NaN, -inf, …, -0.0, 0.0, …, inf, NaN."""
    if value.dtype.lowest > 0:
        return scope.emit("bitcast_convert", value, dtype=DTYPES[f"u{value.dtype.bits}"])
    bits = scope.emit("bitcast_convert", value, dtype=DTYPES[f"s{value.dtype.bits}"])
    flipped = scope.emit("xor", bits, scope.full(2 ** (value.dtype.bits - 1) - 1, bits.type))
    negative = scope.emit("compare", bits, scope.full(0, bits.type), direction="LT")
    return scope.emit("select", negative, flipped, bits)


@converts("convert")
def _convert(op: mlir.Operation, scope: Scope) -> Value:
    (operand,), (type,) = scope.operands(op), scope.result_types(op)
    if type.dtype == operand.dtype:
        return operand
    index = scope.narrowed.get(operand)
    if index is not None and index.dtype == type.dtype:
        return index
    result = scope.emit("convert", operand, dtype=type.dtype)
    number = scope.number(operand)
    if isinstance(number, int) and _is_exact(number, type.dtype):
        scope.numbers[result] = float(number) if type.dtype.is_float else int(number)
    return result


def _is_exact(number: int, dtype: DType) -> bool:
    """Whether the type can represent the integer, a small one."""
    if dtype.is_float:
        return abs(number) <= min(127, dtype.format.exact_integers) and dtype.format.holds(number)
    return dtype.is_integer and abs(number) < 128 and dtype.lowest <= number <= dtype.highest


@converts("bitcast_convert")
def _bitcast_convert(op: mlir.Operation, scope: Scope) -> Value:
    (operand,), (type,) = scope.operands(op), scope.result_types(op)
    return operand if type == operand.type else scope.emit("bitcast_convert", operand, dtype=type.dtype)


@converts("reduce_precision")
def _reduce_precision(op: mlir.Operation, scope: Scope) -> Value:
    exponent, mantissa = int_of(op.attributes["exponent_bits"]), int_of(op.attributes["mantissa_bits"])
    return scope.emit("reduce_precision", *scope.operands(op), exponent_bits=exponent, mantissa_bits=mantissa)


@converts("square")
def _square(op: mlir.Operation, scope: Scope) -> Value:
    (operand,) = scope.operands(op)
    return scope.emit("multiply", operand, operand)


@converts("conj")
def _conj(op: mlir.Operation, scope: Scope) -> Value:
    return conjugate(scope, scope.operands(op)[0])


def conjugate(scope: Scope, value: Value) -> Value:
    """The complex conjugate; real numbers are unchanged."""
    if not value.dtype.is_complex:
        return value
    real, imag = scope.emit("real", value), scope.emit("imag", value)
    return scope.emit("complex", real, scope.emit("negate", imag))
