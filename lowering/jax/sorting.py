"""sort and top_k."""

from __future__ import annotations

from ir.ops.rules import int_attr
from ir.program import Op
from lowering.jax.elementwise import converted, unpacked
from lowering.jax.names import tuple_text
from lowering.jax.writer import FunctionWriter, dtype_text, emits


@emits("sort")
def _sort(w: FunctionWriter, op: Op) -> str:
    dim, keys = int_attr(op.attrs, "dim"), int_attr(op.attrs, "num_keys")
    operands = tuple_text(_alike(w, op))
    stable = "" if op.attrs["stable"] else ", is_stable=False"
    if op.attrs["descending"]:
        text = f"{w.module.helper('sort_descending')}({operands}, {dim}, {keys}{stable})"
    else:
        text = f"lax.sort({operands}, dimension={dim}, num_keys={keys}{stable})"
    dtypes = [v.dtype for v in op.operands]
    if any(unpacked(t) != t for t in dtypes):
        text = f"{w.module.helper('as_types')}({text}, {tuple_text(map(dtype_text, dtypes))})"
    return text if len(op.operands) > 1 else f"{text}[0]"


def _alike(w: FunctionWriter, op: Op) -> list[str]:
    """The operands as varying over the same axes."""
    axes = frozenset[str]().union(*(w.varying(v) for v in op.operands))
    return [converted(w.vary(v, axes), v.dtype, unpacked(v.dtype)) for v in op.operands]


@emits("top_k")
def _top_k(w: FunctionWriter, op: Op) -> str:
    operand, k = op.operands[0], int_attr(op.attrs, "k")
    dtype = operand.dtype
    if unpacked(dtype) != dtype:
        text = f"lax.top_k({converted(w[operand], dtype, unpacked(dtype))}, {k})"
        return f"{w.module.helper('as_types')}({text}, {tuple_text(map(dtype_text, (v.dtype for v in op.results)))})"
    if not dtype.is_float:
        return f"lax.top_k({w[operand]}, {k})"
    return f"{w.module.helper('top_k_of_floats')}({w[operand]}, {k})"
