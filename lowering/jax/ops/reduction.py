"""reduce and the cumulative ops. Sums and products of floats of 16 bits and fewer are taken in f32 and rounded once."""

from __future__ import annotations

from ir.ops.reduction import ARG_KINDS, CUMULATIVE, identity_of, reduction_kind
from ir.ops.rule_helpers import int_attr, ints_attr
from ir.program import Op, Value
from ir.types import DType, pred, s32, u8
from lowering.jax.names import tuple_text
from lowering.jax.ops.creation import filled
from lowering.jax.ops.elementwise import converted
from lowering.jax.writer import FunctionWriter, dtype_text, emits


@emits("reduce")
def _reduce(w: FunctionWriter, op: Op) -> str:
    dims, kind = ints_attr(op.attrs, "dims"), str(op.attrs["kind"])
    if kind in ARG_KINDS:
        return _extreme(w, op, dims, largest=kind == "argmax")
    operand, combining = op.operands[0], reduction_kind(op.attrs)
    if operand.type.size == 0 and combining is not None:
        return w.cast(filled(identity_of(combining, operand.dtype), op.result), set(w.varying(operand)))
    return reduced(w[operand], kind, dims, op.result.dtype)


def _extreme(w: FunctionWriter, op: Op, dims: tuple[int, ...], *, largest: bool) -> str:
    """Elements of fewer than 16 bits are compared in the type in which they are computed, which numpy has."""
    wide = [v.dtype.computed if v.dtype.bits < 16 else v.dtype for v in op.operands]
    values, indices = (converted(w[v], v.dtype, t) for v, t in zip(op.operands, wide, strict=True))
    counted = ", counted=True" if len(dims) == 1 and _are_counted(w, op.operands[1], dims[0]) else ""
    found = f"{w.module.helper('reduce_arg')}({values}, {indices}, {tuple_text(dims)}, largest={largest}{counted})"
    dtypes = [v.dtype for v in op.results]
    if wide == dtypes:
        return found
    return f"{w.module.helper('as_types')}({found}, {tuple_text(map(dtype_text, dtypes))})"


def _are_counted(w: FunctionWriter, indices: Value, dim: int) -> bool:
    """Whether integers count along a dim, from 0 or from where a device's shard begins."""
    maker = w.maker(indices)
    if maker is not None and maker.name == "add":
        counts = [v for v in maker.operands if not _is_place(w, v)]
        maker = w.maker(counts[0]) if len(counts) == 1 else None
    if maker is None or maker.name != "iota" or int_attr(maker.attrs, "dim") != dim:
        return False
    return indices.dtype == s32 and indices.shape[dim] < int(s32.highest)


def _is_place(w: FunctionWriter, value: Value) -> bool:
    """Whether all elements are one number, which depends only on the position of the device."""
    maker = w.maker(value)
    return maker is not None and maker.name == "broadcast_in_dim" and maker.operands[0] in w.module.places.index_of


def reduced(text: str, kind: str, dims: tuple[int, ...], dtype: DType) -> str:
    """The reduction of `text`, of that element type, along dims."""
    exact = accumulator(kind, dtype)
    return converted(f"lax.reduce_{kind}({converted(text, dtype, exact)}, {tuple_text(dims)})", exact, dtype)


@emits(*CUMULATIVE)
def _cumulative(w: FunctionWriter, op: Op) -> str:
    """JAX has cumulative ops for numbers only."""
    dtype = op.result.dtype
    exact = u8 if dtype == pred else accumulator(CUMULATIVE[op.name], dtype)
    operand = converted(w[op.operands[0]], dtype, exact)
    reverse = ", reverse=True" if op.attrs["reverse"] else ""
    return converted(f"lax.{op.name}({operand}, axis={int_attr(op.attrs, 'dim')}{reverse})", exact, dtype)


def accumulator(kind: str, dtype: DType) -> DType:
    """The element type in which elements are combined. Extremes of powers of two are computed in a type that has a
    smaller number, because XLA takes the smallest for zero; bits in a type that JAX reduces."""
    if dtype.is_float:
        return dtype.computed if kind in ("sum", "prod") or not dtype.has_zero else dtype
    return dtype.computed if kind in ("and", "or") else dtype
