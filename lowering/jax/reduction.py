"""reduce and the cumulative ops. Sums and products of 16-bit floats are taken in f32 and rounded once."""

from __future__ import annotations

from ir.ops.reduction import ARG_KINDS, CUMULATIVE
from ir.ops.rules import int_attr, ints_attr
from ir.program import Op
from ir.sharding import ReductionKind
from ir.types import DType, f32, pred, u8
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
    exact = accumulator(kind, dtype)
    return converted(f"lax.reduce_{kind}({converted(text, dtype, exact)}, {tuple_text(dims)})", exact, dtype)


@emits(*CUMULATIVE)
def _cumulative(w: FunctionWriter, op: Op) -> str:
    """JAX has them for numbers only."""
    dtype = op.result.dtype
    exact = u8 if dtype == pred else accumulator(CUMULATIVE[op.name], dtype)
    operand = converted(w[op.operands[0]], dtype, exact)
    reverse = ", reverse=True" if op.attrs["reverse"] else ""
    return converted(f"lax.{op.name}({operand}, axis={int_attr(op.attrs, 'dim')}{reverse})", exact, dtype)


def accumulator(kind: str, dtype: DType) -> DType:
    """The element type in which a reduction is taken."""
    return f32 if kind in ("sum", "prod") and dtype.is_float and dtype.bits < 32 else dtype


def identity(kind: ReductionKind, dtype: DType) -> complex | float | int | bool:
    """What changes no result of that reduction."""
    if kind == "sum":
        return complex(-0.0, -0.0) if dtype.is_complex else -0.0 if dtype.is_float else 0
    if kind == "prod":
        return 1
    if kind == "or":
        return 0
    if kind == "and":
        return -1 if dtype.is_integer else True
    return dtype.lowest if kind == "max" else dtype.highest
