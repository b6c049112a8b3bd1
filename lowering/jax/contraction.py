"""dot_general."""

from __future__ import annotations

from ir.ops.rules import ints_attr
from ir.program import Op
from ir.types import DType, f32
from lowering.jax.elementwise import converted
from lowering.jax.names import tuple_text
from lowering.jax.writer import FunctionWriter, dtype_text, emits


@emits("dot_general")
def _dot_general(w: FunctionWriter, op: Op) -> str:
    lhs, rhs = w.names(op.operands)
    contract = _pair(ints_attr(op.attrs, "lhs_contract"), ints_attr(op.attrs, "rhs_contract"))
    batch = _pair(ints_attr(op.attrs, "lhs_batch"), ints_attr(op.attrs, "rhs_batch"))
    source, target = op.operands[0].dtype, op.result.dtype
    summed = summing_dtype(source, target)
    if source.kind != summed.kind:
        lhs, rhs = converted(lhs, source, summed), converted(rhs, source, summed)
    summed_as_is = summed == source or summed.kind != source.kind
    preferred = "" if summed_as_is else f", preferred_element_type={dtype_text(summed)}"
    return converted(f"lax.dot_general({lhs}, {rhs}, ({contract}, {batch}){preferred})", summed, target)


def _pair(lhs: tuple[int, ...], rhs: tuple[int, ...]) -> str:
    return f"({tuple_text(lhs)}, {tuple_text(rhs)})"


def summing_dtype(source: DType, target: DType) -> DType:
    """The element type that products are summed in: never narrower than the operands, f32 for 16-bit floats."""
    wider = target if target.bits >= source.bits or source.kind != target.kind else source
    return f32 if wider.is_float and wider.bits < 32 else wider
