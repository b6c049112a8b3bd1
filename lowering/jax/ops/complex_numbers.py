"""Complex numbers and the bits of numbers."""

from __future__ import annotations

from ir.ops.rule_helpers import int_attr
from ir.program import Op
from lowering.jax.ops.elementwise import converted
from lowering.jax.writer import FunctionWriter, dtype_text, emits


@emits("complex")
def _complex(w: FunctionWriter, op: Op) -> str:
    return f"lax.complex({', '.join(w.names(op.operands))})"


@emits("real")
def _real(w: FunctionWriter, op: Op) -> str:
    (x,) = w.names(op.operands)
    return f"lax.real({x})" if op.operands[0].dtype.is_complex else x


@emits("imag")
def _imag(w: FunctionWriter, op: Op) -> str:
    (x,) = w.names(op.operands)
    return f"lax.imag({x})" if op.operands[0].dtype.is_complex else f"jnp.zeros_like({x})"


@emits("abs")
def _abs(w: FunctionWriter, op: Op) -> str:
    """Integers of fewer than 8 bits are widened, because JAX has no abs for them."""
    dtype = op.operands[0].dtype
    if dtype.is_integer:
        magnitude = f"lax.abs({converted(w[op.operands[0]], dtype, dtype.computed)})"
        return converted(magnitude, dtype.computed, dtype)
    return f"lax.abs({w[op.operands[0]]})"


@emits("bitcast_convert")
def _bitcast_convert(w: FunctionWriter, op: Op) -> str:
    source, target = op.operands[0].dtype, op.result.dtype
    operand = w.apart(op.operands[0], op)
    if min(source.bits, target.bits) < 8 and source.bits != target.bits:
        return f"{w.module.helper('bits_as')}({operand}, {dtype_text(target)})"
    text = f"lax.bitcast_convert_type({operand}, {dtype_text(target)})"
    return f"lax.optimization_barrier({text})" if target.bits < source.bits and w.module.runs_on_gpu else text


@emits("reduce_precision")
def _reduce_precision(w: FunctionWriter, op: Op) -> str:
    exponent, mantissa = int_attr(op.attrs, "exponent_bits"), int_attr(op.attrs, "mantissa_bits")
    return f"lax.reduce_precision({w[op.operands[0]]}, {exponent}, {mantissa})"
