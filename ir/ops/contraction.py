"""dot_general, the op that every einsum of two operands becomes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ir.ops.declaration import (
    AttrDef,
    Attrs,
    FactorKind,
    FactorRule,
    InKernels,
    Linearity,
    TypeRuleError,
    Types,
    declare,
)
from ir.ops.reduction import no_sums
from ir.ops.rule_helpers import Factors, check_dims, check_same_dtype, ints_attr
from ir.program import Op
from ir.types import DType, TensorType, pred


def free_dims(rank: int, *taken: Sequence[int]) -> tuple[int, ...]:
    """The dims, in order, that none of the lists names."""
    used = {d for dims in taken for d in dims}
    return tuple(d for d in range(rank) if d not in used)


def dtype_of_sums(operands: DType, attrs: Attrs) -> DType:
    """The element type in which products are summed: that of the operands, unless an attribute specifies another.
    Raises TypeRuleError if products of such elements are not summed in it."""
    result = attrs.get("dtype") or operands
    assert isinstance(result, DType)
    for dtype in (operands, result):
        if not dtype.has_zero:
            raise no_sums(dtype)
    if result.is_complex != operands.is_complex or (result.is_integer and not operands.is_integer):
        raise TypeRuleError(f"products of {operands} are not summed as {result}", "convert the operands, or the result")
    return result


def _infer(types: Types, attrs: Attrs) -> Types:
    lhs, rhs = types
    check_same_dtype(lhs, rhs)
    if lhs.dtype == pred:
        raise TypeRuleError("the elements must be numbers, and are pred", "convert(x, dtype=f32)")
    lb, rb = ints_attr(attrs, "lhs_batch"), ints_attr(attrs, "rhs_batch")
    lc, rc = ints_attr(attrs, "lhs_contract"), ints_attr(attrs, "rhs_contract")
    check_dims((*lb, *lc), lhs.rank, "lhs dim")
    check_dims((*rb, *rc), rhs.rank, "rhs dim")
    if len(lb) != len(rb) or len(lc) != len(rc):
        raise TypeRuleError("lhs and rhs must name as many batch dims and as many contracting dims")
    for what, left, right in (("batch", lb, rb), ("contracting", lc, rc)):
        for a, b in zip(left, right, strict=True):
            if lhs.shape[a] != rhs.shape[b]:
                raise TypeRuleError(
                    f"{what} dims differ in size: "
                    f"dim {a} of {lhs} is {lhs.shape[a]}, dim {b} of {rhs} is {rhs.shape[b]}"
                )
    shape = (
        *(lhs.shape[d] for d in lb),
        *(lhs.shape[d] for d in free_dims(lhs.rank, lb, lc)),
        *(rhs.shape[d] for d in free_dims(rhs.rank, rb, rc)),
    )
    return (TensorType(shape, dtype_of_sums(lhs.dtype, attrs)),)


def _factors(op: Op) -> FactorRule:
    lhs, rhs = op.operands
    lb, rb = ints_attr(op.attrs, "lhs_batch"), ints_attr(op.attrs, "rhs_batch")
    lc, rc = ints_attr(op.attrs, "lhs_contract"), ints_attr(op.attrs, "rhs_contract")
    lf, rf = free_dims(lhs.type.rank, lb, lc), free_dims(rhs.type.rank, rb, rc)
    factors = Factors()
    batch, rows, columns = (
        factors.dims([value.shape[d] for d in dims]) for value, dims in ((lhs, lb), (lhs, lf), (rhs, rf))
    )
    summed = factors.dims([lhs.shape[d] for d in lc], FactorKind.REDUCTION, "sum")
    left = dict(zip((*lb, *lf, *lc), (*batch, *rows, *summed), strict=True))
    right = dict(zip((*rb, *rf, *rc), (*batch, *columns, *summed), strict=True))
    sides = [tuple(side[d] for d in range(len(side))) for side in (left, right)]
    return factors.rule(sides, [(*batch, *rows, *columns)])


def contracted(op: Op) -> int:
    """How many products each sum has."""
    return math.prod(op.operands[0].shape[d] for d in ints_attr(op.attrs, "lhs_contract"))


def _flops(op: Op) -> int:
    return 2 * op.result.type.size * contracted(op)


_dims = tuple(
    AttrDef(name, "ints", default=(), required=False)
    for name in ("lhs_batch", "rhs_batch", "lhs_contract", "rhs_contract")
)

declare(
    "dot_general",
    "contraction",
    2,
    _infer,
    _factors,
    (*_dims, AttrDef("dtype", "dtype", default=None, required=False)),
    linear=(Linearity(("sum",), (0,)), Linearity(("sum",), (1,))),
    flops=_flops,
    terms=lambda op, bounds: math.prod(bounds) * contracted(op),
    doc="Result dims: batch, then lhs free, then rhs free. bf16 and f16 products are summed in f32.",
    in_kernels=InKernels.PRODUCT,
)


def is_matrix_product(op: Op) -> bool:
    """Whether the op multiplies matrices, in batches or not."""
    return op.name == "dot_general"


def dims_of_product(dot: Op) -> tuple[int, int, int]:
    """The numbers of rows, columns and summed elements of a dot_general."""
    lhs, rhs = dot.operands
    batch = math.prod(lhs.shape[d] for d in ints_attr(dot.attrs, "lhs_batch"))
    summed = math.prod(lhs.shape[d] for d in ints_attr(dot.attrs, "lhs_contract"))
    rows, columns = (value.type.size // (batch * summed or 1) for value in (lhs, rhs))
    return rows, columns, summed
