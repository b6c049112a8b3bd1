"""sort and top_k."""

from __future__ import annotations

from ir.ops.rule_helpers import int_attr
from ir.program import Op
from ir.types import DType
from lowering.jax.names import tuple_text
from lowering.jax.ops.elementwise import converted
from lowering.jax.writer import FunctionWriter, dtype_text, emits


@emits("sort")
def _sort(w: FunctionWriter, op: Op) -> str:
    dim, keys = int_attr(op.attrs, "dim"), int_attr(op.attrs, "num_keys")
    operands = tuple_text(_alike(w, op))
    stable = "" if op.attrs["stable"] else ", is_stable=False"
    is_cut = op.results[0].type != op.operands[0].type
    if is_cut and _is_ranked(w, op, dim, keys):
        text = f"{w.module.helper('largest_first')}({operands}, {op.results[0].shape[dim]})"
        is_cut = False
    elif op.attrs["descending"]:
        text = f"{w.module.helper('sort_descending')}({operands}, {dim}, {keys}{stable})"
    else:
        text = f"lax.sort({operands}, dimension={dim}, num_keys={keys}{stable})"
    dtypes = [v.dtype for v in op.operands]
    if any(sorted_dtype(t) != t for t in dtypes):
        text = f"{w.module.helper('as_types')}({text}, {tuple_text(map(dtype_text, dtypes))})"
    if is_cut:
        text = f"{w.module.helper('first_along')}({text}, {op.results[0].shape[dim]}, {dim})"
    return text if len(op.operands) > 1 else f"{text}[0]"


def _is_ranked(w: FunctionWriter, op: Op, dim: int, keys: int) -> bool:
    """Whether the largest elements are found by lax.top_k, and what goes with them is looked up."""
    is_last = dim == op.operands[0].type.rank - 1
    return (
        bool(op.attrs["descending"])
        and keys == 1
        and is_last
        and op.operands[0].dtype.kind != "pred"
        and w.module.compiles_on_cpu
    )


def sorted_dtype(dtype: DType) -> DType:
    """The element type in which elements are sorted. XLA cannot sort elements that share a byte together with others,
    and sorts a NaN with the bits of a negative zero first."""
    nan_is_signed = dtype.is_float and dtype.format.has_nan and not dtype.format.has_negative_zero
    return dtype.computed if dtype.kind != "pred" and (dtype.bits < 8 or nan_is_signed) else dtype


def _alike(w: FunctionWriter, op: Op) -> list[str]:
    """The operands, made to vary over the same axes."""
    axes = frozenset[str]().union(*(w.varying(v) for v in op.operands))
    return [converted(w.vary(v, axes), v.dtype, sorted_dtype(v.dtype)) for v in op.operands]


@emits("top_k")
def _top_k(w: FunctionWriter, op: Op) -> str:
    operand, k = op.operands[0], int_attr(op.attrs, "k")
    dtype, compared = operand.dtype, sorted_dtype(operand.dtype)
    function = w.module.helper("top_k_of_floats") if dtype.is_float else "lax.top_k"
    text = f"{function}({converted(w[operand], dtype, compared)}, {k})"
    if compared == dtype:
        return text
    return f"{w.module.helper('as_types')}({text}, {tuple_text(dtype_text(v.dtype) for v in op.results)})"
