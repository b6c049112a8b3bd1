"""Random bits and numbers."""

from __future__ import annotations

import math

from jaxlib.mlir import ir as mlir

from ir.program import Value
from ir.types import DTYPES, TensorType, pred
from spmdc.frontends.stablehlo.attributes import word_of
from spmdc.frontends.stablehlo.scope import Bound, Scope, converts

_STATE = DTYPES["u64"]


@converts("rng_bit_generator")
def _rng_bit_generator(op: mlir.Operation, scope: Scope) -> list[Bound]:
    (state,), (_, type) = scope.operands(op), scope.result_types(op)
    algorithm = word_of(op.attributes["rng_algorithm"])
    drawn = TensorType(type.shape, DTYPES[f"u{type.dtype.bits}"])
    found = scope.builder.append("rng_bit_generator", [state], {"type": drawn, "algorithm": algorithm})
    bits = found[1] if type == drawn else scope.emit("bitcast_convert", found[1], dtype=type.dtype)
    return [found[0], bits]


def _seed(op: mlir.Operation, scope: Scope) -> Value:
    """An initial state that no other op of the program has. Raises SpmdcError (E704) if the op runs several times."""
    if scope.repeats:
        message = "it draws other numbers each time, and what a program here computes depends on its arguments alone"
        help = "draw with rng_bit_generator, or jax.random, from a state that it is given"
        raise scope.refuse(op, message, code="E704", help=help)
    scope.module.draws += 1
    return scope.emit("constant", value=(scope.module.draws, 0), type=TensorType((2,), _STATE))


@converts("xla.rng_get_and_update_state")
def _state(op: mlir.Operation, scope: Scope) -> Value:
    return _seed(op, scope)


@converts("rng")
def _rng(op: mlir.Operation, scope: Scope) -> Value:
    """Numbers of a distribution, drawn with a state of the op's own."""
    (a, b), (type,) = scope.operands(op)[:2], scope.result_types(op)
    low, high = scope.broadcast(a, type), scope.broadcast(b, type)
    state = _seed(op, scope)
    if word_of(op.attributes["rng_distribution"]) == "NORMAL":
        return _normal(scope, state, low, high)
    width = scope.emit("subtract", high, low) if type.dtype != pred else None
    if width is None:
        state, drawn = _bits(scope, state, type, 8)
        return scope.emit("compare", drawn, scope.full(128, drawn.type), direction="LT")
    if type.dtype.is_integer:
        drawn = scope.emit("convert", _bits(scope, state, type, 64)[1], dtype=type.dtype)
        inside = scope.emit("remainder", drawn, scope.emit("maximum", width, scope.full(1, type)))
        negative = scope.emit("compare", inside, scope.full(0, type), direction="LT")
        return scope.emit("add", low, scope.emit("select", negative, scope.emit("add", inside, width), inside))
    return scope.emit("add", low, scope.emit("multiply", _fraction(scope, state, type)[1], width))


def _bits(scope: Scope, state: Value, type: TensorType, width: int) -> tuple[Value, Value]:
    drawn = TensorType(type.shape, DTYPES[f"u{width}"])
    found = scope.builder.append("rng_bit_generator", [state], {"type": drawn, "algorithm": "THREE_FRY"})
    return found[0], found[1]


def _fraction(scope: Scope, state: Value, type: TensorType) -> tuple[Value, Value]:
    """The next state, and numbers in [0, 1): the mantissas of floats in [1, 2), minus 1."""
    wide = type.dtype == DTYPES["f64"]
    width, mantissa, one, dtype = (64, 52, 1023 << 52, "f64") if wide else (32, 23, 127 << 23, "f32")
    state, drawn = _bits(scope, state, type, width)
    shifted = scope.emit("shift_right_logical", drawn, scope.full(width - mantissa, drawn.type))
    number = scope.emit("bitcast_convert", scope.emit("or", shifted, scope.full(one, drawn.type)), dtype=DTYPES[dtype])
    fraction = scope.emit("subtract", number, scope.full(1.0, number.type))
    return state, fraction if fraction.type == type else scope.emit("convert", fraction, dtype=type.dtype)


def _normal(scope: Scope, state: Value, mean: Value, deviation: Value) -> Value:
    """Normal numbers by the method of Box and Muller, "A note on the generation of random normal deviates", 1958."""
    type = mean.type
    state, first = _fraction(scope, state, type)
    _, second = _fraction(scope, state, type)
    above_zero = scope.emit("subtract", scope.full(1.0, type), first)
    radius = scope.emit("sqrt", scope.emit("multiply", scope.full(-2.0, type), scope.emit("log", above_zero)))
    angle = scope.emit("multiply", scope.full(2 * math.pi, type), second)
    drawn = scope.emit("multiply", radius, scope.emit("cosine", angle))
    return scope.emit("add", mean, scope.emit("multiply", deviation, drawn))


@converts("stochastic_convert")
def _stochastic_convert(op: mlir.Operation, scope: Scope) -> Value:
    """Rounds away from zero if the random bits, as a fraction, are less than the number's fraction. Raises SpmdcError
    (E702) for types for which XLA does not compile it."""
    (operand, bits), (type,) = scope.operands(op), scope.result_types(op)
    if not operand.dtype.is_float or type.dtype.kind != "signed":
        message = f"XLA rounds {operand.dtype} to no {type.dtype} at random"
        raise scope.refuse(op, message, help="round to s8, s16 or s32")
    wide = operand if operand.dtype.bits >= 32 else scope.emit("convert", operand, dtype=DTYPES["f32"])
    size = scope.emit("abs", wide)
    below = scope.emit("floor", size)
    fraction = scope.emit("subtract", size, below)
    scaled = scope.emit("multiply", fraction, scope.full(2.0**bits.dtype.bits, wide.type))
    up = scope.emit("compare", bits, scope.emit("convert", scaled, dtype=bits.dtype), direction="LT")
    rounded = scope.emit("add", below, scope.emit("convert", up, dtype=wide.dtype))
    negative = scope.emit("compare", wide, scope.full(0.0, wide.type), direction="LT")
    signed = scope.emit("select", negative, scope.emit("negate", rounded), rounded)
    return scope.emit("convert", signed, dtype=type.dtype)
