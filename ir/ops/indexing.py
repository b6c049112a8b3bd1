"""Ops that read at computed indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ir.ops.layout import window_factors
from ir.ops.opdef import AttrDef, FactorRule, Linearity, OpDef, TypeRuleError, declare
from ir.ops.rules import ints_attr
from ir.program import Attr, Op
from ir.sharding import REDUCTION_KINDS
from ir.types import TensorType


def _infer_dynamic_slice(types: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Sequence[TensorType]:
    operand, starts = types[0], types[1:]
    sizes = ints_attr(attrs, "sizes")
    if len(sizes) != operand.rank or len(starts) != operand.rank:
        raise TypeRuleError(f"there must be a start and a size for each of the {operand.rank} dims of {operand}")
    for t in starts:
        if t.rank or not t.dtype.is_integer:
            raise TypeRuleError(f"a start must be an integer scalar, and is {t}")
    for d, (size, n) in enumerate(zip(sizes, operand.shape, strict=True)):
        if not 0 <= size <= n:
            raise TypeRuleError(f"size {size} of dim {d} must be between 0 and {n}, the size of that dim")
    return (operand.with_shape(sizes),)


def _dynamic_slice_factors(op: Op) -> FactorRule:
    return window_factors(op, [a == b for a, b in zip(op.operands[0].shape, op.result.shape, strict=True)])


declare(
    OpDef(
        "dynamic_slice",
        "indexing",
        None,
        _infer_dynamic_slice,
        _dynamic_slice_factors,
        (AttrDef("sizes", "ints"),),
        linear=(Linearity(REDUCTION_KINDS, (0,)),),
        doc="A box of static sizes at computed starts, each clamped so that the box lies inside the operand.",
    )
)
