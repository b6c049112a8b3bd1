"""reduce and cumsum. Sums and products of 16-bit floats are taken in f32 and rounded once."""

from __future__ import annotations

from ir.ops.reduction import ARG_KINDS
from ir.ops.rules import int_attr, ints_attr
from ir.program import Op
from ir.types import DType, f32
from lowering.jax.elementwise import converted
from lowering.jax.names import tuple_text
from lowering.jax.writer import FunctionWriter, emits


@emits("reduce")
def _reduce(w: FunctionWriter, op: Op) -> str:
    dims, kind = ints_attr(op.attrs, "dims"), str(op.attrs["kind"])
    if kind in ARG_KINDS:
        values, indices = w.names(op.operands)
        return f"{w.module.helper('reduce_arg')}({values}, {indices}, {tuple_text(dims)}, largest={kind == 'argmax'})"
    return reduced(w[op.operands[0]], kind, dims, op.result.dtype)


def reduced(text: str, kind: str, dims: tuple[int, ...], dtype: DType) -> str:
    """The reduction of `text`, of that element type, along dims."""
    exact = _accumulator(kind, dtype)
    return converted(f"lax.reduce_{kind}({converted(text, dtype, exact)}, {tuple_text(dims)})", exact, dtype)


@emits("cumsum")
def _cumsum(w: FunctionWriter, op: Op) -> str:
    dtype = op.result.dtype
    exact = _accumulator("sum", dtype)
    operand = converted(w[op.operands[0]], dtype, exact)
    reverse = ", reverse=True" if op.attrs["reverse"] else ""
    return converted(f"lax.cumsum({operand}, axis={int_attr(op.attrs, 'dim')}{reverse})", exact, dtype)


def _accumulator(kind: str, dtype: DType) -> DType:
    return f32 if kind in ("sum", "prod") and dtype.is_float and dtype.bits < 32 else dtype
