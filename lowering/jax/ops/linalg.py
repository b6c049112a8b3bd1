"""fft, cholesky and triangular_solve. XLA computes the last two in 32 and 64 bits; 16-bit floats are widened to f32."""

from __future__ import annotations

from ir.ops.rule_helpers import ints_attr
from ir.program import Op
from ir.types import DType, f32
from lowering.jax.names import tuple_text
from lowering.jax.ops.elementwise import converted
from lowering.jax.writer import FunctionWriter, emits


@emits("fft")
def _fft(w: FunctionWriter, op: Op) -> str:
    length = tuple_text(ints_attr(op.attrs, "length"))
    plain = op.result.type.rank == 1 or not w.module.runs_on_cpu
    function = "lax.fft" if plain else w.module.helper("row_major_fft")
    return f"{function}({w[op.operands[0]]}, lax.FftType.{op.attrs['kind']}, {length})"


def _wide(dtype: DType) -> DType:
    return f32 if dtype.bits < f32.bits else dtype


@emits("cholesky")
def _cholesky(w: FunctionWriter, op: Op) -> str:
    dtype = op.result.dtype
    operand = converted(w[op.operands[0]], dtype, _wide(dtype))
    if w.module.is_differentiated:
        operand = f"{w.module.helper('hermitian')}({operand}, lower={op.attrs['lower']})"
    if op.attrs["lower"]:
        factor = f"lax.linalg.cholesky({operand}, symmetrize_input=False)"
    else:
        factor = f"{w.module.helper('upper_cholesky')}({operand})"
    return converted(factor, _wide(dtype), dtype)


@emits("triangular_solve")
def _triangular_solve(w: FunctionWriter, op: Op) -> str:
    dtype = op.result.dtype
    both = w.varying(op.operands[0]) | w.varying(op.operands[1])
    a, b = (converted(w.vary(v, both), dtype, _wide(dtype)) for v in op.operands)
    options = [f"{name}={op.attrs[name]}" for name in ("left_side", "lower", "unit_diagonal")]
    if op.attrs["transpose"] != "NO":
        options.append("transpose_a=True")
    if op.attrs["transpose"] == "C":
        options.append("conjugate_a=True")
    return converted(f"lax.linalg.triangular_solve({a}, {b}, {', '.join(options)})", _wide(dtype), dtype)
