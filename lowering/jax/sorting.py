"""sort and top_k."""

from __future__ import annotations

from ir.ops.rules import int_attr
from ir.program import Op
from lowering.jax.names import tuple_text
from lowering.jax.writer import FunctionWriter, emits


@emits("sort")
def _sort(w: FunctionWriter, op: Op) -> str:
    dim, keys = int_attr(op.attrs, "dim"), int_attr(op.attrs, "num_keys")
    operands = tuple_text(_alike(w, op))
    stable = "" if op.attrs["stable"] else ", is_stable=False"
    if op.attrs["descending"]:
        text = f"{w.module.helper('sort_descending')}({operands}, {dim}, {keys}{stable})"
    else:
        text = f"lax.sort({operands}, dimension={dim}, num_keys={keys}{stable})"
    return text if len(op.operands) > 1 else f"{text}[0]"


def _alike(w: FunctionWriter, op: Op) -> list[str]:
    """The operands as varying over the same axes."""
    axes = frozenset[str]().union(*(w.varying(v) for v in op.operands))
    return [w.vary(v, axes) for v in op.operands]


@emits("top_k")
def _top_k(w: FunctionWriter, op: Op) -> str:
    operand, k = op.operands[0], int_attr(op.attrs, "k")
    if not operand.dtype.is_float:
        return f"lax.top_k({w[operand]}, {k})"
    return f"{w.module.helper('top_k_of_floats')}({w[operand]}, {k})"
