"""Ops that read at computed indices. HLO clamps a negative start to 0, where jax.lax would count from the end."""

from __future__ import annotations

from ir.ops.rules import ints_attr
from ir.program import Op
from lowering.jax.names import tuple_text
from lowering.jax.writer import FunctionWriter, emits


@emits("dynamic_slice")
def _dynamic_slice(w: FunctionWriter, op: Op) -> str:
    operand, *starts = w.names(op.operands)
    sizes = tuple_text(ints_attr(op.attrs, "sizes"))
    return f"lax.dynamic_slice({operand}, {tuple_text(starts)}, {sizes}, allow_negative_indices=False)"
