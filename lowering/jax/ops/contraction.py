"""Emitter of dot_general."""

from __future__ import annotations

from ir.ops.contraction import contracted
from ir.ops.rule_helpers import ints_attr
from ir.program import Op
from ir.types import DType, f32
from lowering.jax.names import tuple_text
from lowering.jax.ops.elementwise import converted
from lowering.jax.writer import FunctionWriter, dtype_text, emits


@emits("dot_general")
def _dot_general(w: FunctionWriter, op: Op) -> str:
    lhs, rhs = w.names(op.operands)
    contract = _pair(ints_attr(op.attrs, "lhs_contract"), ints_attr(op.attrs, "rhs_contract"))
    batch = _pair(ints_attr(op.attrs, "lhs_batch"), ints_attr(op.attrs, "rhs_batch"))
    source, target = op.operands[0].dtype, op.result.dtype
    dims = f"({contract}, {batch})"
    if is_summed_wide(source, target):
        return f"lax.dot_general({lhs}, {rhs}, {dims})"
    lhs, rhs, source = multiplied(lhs, source), multiplied(rhs, source), multiplied_dtype(source)
    summed = summing_dtype(source, target)
    # Of complex numbers, XLA has no products for GPUs whose results are wider.
    widened_first = source.kind != summed.kind or (source.is_complex and source != summed)
    if widened_first or (w.module.runs_on_gpu and _is_summed_in_fours(op, source, summed)):
        lhs, rhs = converted(lhs, source, summed), converted(rhs, source, summed)
        source = summed
    if summed == source:
        text = f"lax.dot_general({lhs}, {rhs}, {dims})"
    else:
        text = f"lax.dot_general({lhs}, {rhs}, {dims}, preferred_element_type={dtype_text(summed)})"
    return converted(text, summed, target)


def _pair(lhs: tuple[int, ...], rhs: tuple[int, ...]) -> str:
    return f"({tuple_text(lhs)}, {tuple_text(rhs)})"


def _is_summed_in_fours(op: Op, source: DType, summed: DType) -> bool:
    """Whether XLA's GPU backend may count the last products of each sum twice: it does if their number is not divisible
    by 4, the factors have 8 bits, and the sum more."""
    return source.is_integer and source.bits == 8 and source != summed and contracted(op) % 4 != 0


def is_summed_wide(source: DType, target: DType) -> bool:
    """Whether every backend sums products of that type in f32 and rounds once by default.

    All do so for 16-bit floats. If the program specified it, as a product with an f32 result and a conversion after it,
    the gradient would be computed in f32.
    """
    return source == target and source.is_float and source.bits == 16


def multiplied_dtype(dtype: DType) -> DType:
    """The element type of factors: XLA cannot multiply types of fewer than 8 bits into sums of another type."""
    return dtype.computed if dtype.bits < 8 else dtype


def multiplied(text: str, dtype: DType) -> str:
    """`text`, of that element type, converted to the type of factors."""
    return converted(text, dtype, multiplied_dtype(dtype))


def summing_dtype(source: DType, target: DType) -> DType:
    """The element type that products are summed in: never narrower than the operands, and f32 for shorter floats."""
    wider = target if target.bits >= source.bits or source.kind != target.kind else source
    return f32 if wider.is_float and wider.bits < 32 else wider
