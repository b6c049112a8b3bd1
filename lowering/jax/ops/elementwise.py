"""Emitters of elementwise ops: one function of jax.lax each. JAX traces these in half the time of Python's
operators."""

from __future__ import annotations

from collections.abc import Sequence

from ir.ops.creation import constant_value
from ir.program import Op, Value
from ir.types import DTYPES, DType
from lowering.jax.numbers import takes_numbers
from lowering.jax.ops.creation import scalar_text
from lowering.jax.writer import EMITTERS, Emitter, FunctionWriter, dtype_text, emits
from lowering.jax.xla_faults import ROUNDED_TO_NAN

_FUNCTIONS = {
    "sign": "lax.sign", "cbrt": "lax.cbrt", "cosine": "lax.cos", "erf": "lax.erf",
    "exponential": "lax.exp", "exponential_minus_one": "lax.expm1", "log": "lax.log", "log_plus_one": "lax.log1p",
    "logistic": "lax.logistic", "rsqrt": "lax.rsqrt", "sine": "lax.sin", "sqrt": "lax.sqrt", "tan": "lax.tan",
    "tanh": "lax.tanh", "ceil": "lax.ceil", "floor": "lax.floor",
    "count_leading_zeros": "lax.clz", "remainder": "lax.rem", "atan2": "lax.atan2", "maximum": "lax.max",
    "minimum": "lax.min", "shift_left": "lax.shift_left", "shift_right_arithmetic": "lax.shift_right_arithmetic",
    "shift_right_logical": "lax.shift_right_logical", "is_finite": "lax.is_finite", "select": "lax.select",
    "add": "lax.add", "subtract": "lax.sub", "multiply": "lax.mul",
    "and": "lax.bitwise_and", "or": "lax.bitwise_or", "xor": "lax.bitwise_xor", "negate": "lax.neg",
    "not": "lax.bitwise_not", "stop_gradient": "lax.stop_gradient",
}  # fmt: skip

_ROUNDINGS = {"round_nearest_afz": "AWAY_FROM_ZERO", "round_nearest_even": "TO_NEAREST_EVEN"}


def _function(name: str) -> Emitter:
    return lambda w, op: f"{name}({', '.join(_operands(w, op))})"


def _operands(w: FunctionWriter, op: Op) -> list[str]:
    """The arguments for jax.lax: the number itself for a constant that nothing needs as an array."""
    numbers = w.module.numbers
    return [w[v] if v not in numbers else scalar_text(numbers[v], v.dtype) for v in op.operands]


@takes_numbers(
    "add", "and", "atan2", "compare", "maximum", "minimum", "multiply", "or", "remainder", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "subtract", "xor",
)  # fmt: skip
def _any_operand(op: Op) -> Sequence[Value]:
    return op.operands


@takes_numbers("divide", "power")
def _any_operand_of_floats(op: Op) -> Sequence[Value]:
    """For floats, any operand may be the array. For integers the op is several functions, which take no numbers."""
    return () if op.result.dtype.is_integer else op.operands


@takes_numbers("clamp")
def _what_is_clamped(op: Op) -> Sequence[Value]:
    return op.operands[1:2]


def _rounding(method: str) -> Emitter:
    def emit(w: FunctionWriter, op: Op) -> str:
        dtype = op.result.dtype
        exact = dtype.computed if dtype in ROUNDED_TO_NAN else dtype
        operand = converted(w[op.operands[0]], dtype, exact)
        return converted(f"lax.round({operand}, lax.RoundingMethod.{method})", exact, dtype)

    return emit


EMITTERS |= {name: _function(function) for name, function in _FUNCTIONS.items()}
EMITTERS |= {name: _rounding(method) for name, method in _ROUNDINGS.items()}


@emits("popcnt")
def _popcnt(w: FunctionWriter, op: Op) -> str:
    """For types of fewer bits than a byte, XLA also counts the bits that extend the sign."""
    dtype = op.result.dtype
    counted = DTYPES[f"u{dtype.bits}"] if dtype.bits < 8 else dtype
    return converted(f"lax.population_count({converted(w[op.operands[0]], dtype, counted)})", counted, dtype)


@emits("divide")
def _divide(w: FunctionWriter, op: Op) -> str:
    dividend, divisor = _operands(w, op)
    plain = not op.result.dtype.is_integer or w.number(op.operands[1]) is not None
    return f"{'lax.div' if plain else w.module.helper('integer_quotient')}({dividend}, {divisor})"


@emits("power")
def _power(w: FunctionWriter, op: Op) -> str:
    lhs, rhs = _operands(w, op)
    function = w.module.helper("integer_power") if op.result.dtype.is_integer else "lax.pow"
    return f"{function}({lhs}, {rhs})"


@emits("clamp")
def _clamp(w: FunctionWriter, op: Op) -> str:
    """JAX's derivative by the bounds requires that these are in order, and have the operand's shape."""
    low, operand, high = _operands(w, op)
    are_constants = all(constant_value(w.maker(v)) is not None for v in (op.operands[0], op.operands[2]))
    if w.module.is_differentiated and not are_constants:
        return f"jnp.minimum(jnp.maximum({low}, {operand}), {high})"
    return f"lax.clamp({low}, {operand}, {high})"


@emits("compare")
def _compare(w: FunctionWriter, op: Op) -> str:
    lhs, rhs = _operands(w, op)
    return f"lax.{str(op.attrs['direction']).lower()}({lhs}, {rhs})"


@emits("convert")
def _convert(w: FunctionWriter, op: Op) -> str:
    return converted(w[op.operands[0]], op.operands[0].dtype, op.result.dtype)


def converted(text: str, source: DType, target: DType) -> str:
    """`text`, of element type `source`, converted to `target`. XLA does not convert 6.0, the largest number of 4 bits,
    to an integer."""
    if source.is_complex and not target.is_complex:
        return converted(f"lax.real({text})", source.component, target)
    if source.is_float and source.bits < 8 and target.is_integer:
        return converted(converted(text, source, source.computed), source.computed, target)
    return text if source == target else f"lax.convert_element_type({text}, {dtype_text(target)})"


def unpacked(dtype: DType) -> DType:
    """The element type in which numbers of this one are moved. XLA packs types of 2 bits, and its CPU backend loses
    some of them or aborts the process (jaxlib 0.10.2 and 0.12.0)."""
    return dtype.computed if dtype.bits == 2 else dtype
