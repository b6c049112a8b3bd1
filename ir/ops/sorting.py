"""sort and top_k. In floats, NaN is above every number and -0.0 equals 0.0, as in jax.lax.sort."""

from __future__ import annotations

from collections.abc import Sequence

from ir.ops.declaration import AttrDef, Attrs, Factor, FactorKind, FactorRule, TypeRuleError, Types, Unclaimed, declare
from ir.ops.rule_helpers import a_factor_a_dim, check_dim, int_attr
from ir.program import Op
from ir.types import TensorType, s32


def _infer_sort(types: Types, attrs: Attrs) -> Types:
    if not types:
        raise TypeRuleError("there is nothing to sort")
    for t in types[1:]:
        if t.shape != types[0].shape:
            raise TypeRuleError(f"what is sorted together must have one shape, and {types[0]} and {t} differ")
    check_dim(int_attr(attrs, "dim"), types[0].rank)
    keys = int_attr(attrs, "num_keys")
    if not 1 <= keys <= len(types):
        raise TypeRuleError(f"num_keys is {keys}: it must be from 1 to {len(types)}, the number of operands")
    for t in types[:keys]:
        _check_ordered(t)
    return tuple(t.with_shape(_kept(t.shape, attrs)) for t in types)


def _kept(shape: Sequence[int], attrs: Attrs) -> tuple[int, ...]:
    """The shape with the `first` elements along dim only."""
    dim, first = int_attr(attrs, "dim"), attrs["first"]
    if not isinstance(first, int):
        return tuple(shape)
    if not 0 <= first <= shape[dim]:
        raise TypeRuleError(f"first is {first}: it must be from 0 to {shape[dim]}, the size of dim {dim}")
    return tuple(first if d == dim else n for d, n in enumerate(shape))


def _check_ordered(operand: TensorType) -> None:
    if not operand.dtype.is_ordered:
        raise TypeRuleError("complex numbers have no order", "sort by abs(x), or by real(x) and imag(x)")


def _sort_factors(op: Op) -> FactorRule:
    """A whole dim is sorted at once. If only the `first` elements are wanted, devices find candidates, as for top_k."""
    dim, first = int_attr(op.attrs, "dim"), op.attrs["first"]
    shape = op.operands[0].shape
    if isinstance(first, int):
        return _searched(shape, dim, first, len(op.operands), len(op.results))
    return a_factor_a_dim(op, shape, {dim: FactorKind.NEED_REPLICATION})


def _comparisons(op: Op) -> int:
    """n log n for each row."""
    x = op.operands[0]
    return x.type.size * max(1, x.shape[int_attr(op.attrs, "dim")]).bit_length()


declare(
    "sort",
    "sorting",
    None,
    _infer_sort,
    _sort_factors,
    (
        AttrDef("dim", "int"),
        AttrDef("descending", "bool", default=False, required=False),
        AttrDef("num_keys", "int", default=1, required=False),
        AttrDef("stable", "bool", default=True, required=False),
        AttrDef("first", "int", required=False, doc="how many of the elements are kept, if not all: first=3"),
    ),
    flops=_comparisons,
    taken_along=lambda op: int_attr(op.attrs, "num_keys"),
    unclaimed=(Unclaimed(("max", "min"), "only where the keys are distinct"),),
    doc=(
        "The operands along dim, rearranged together in the order of the first num_keys of them, the first "
        "counting most. Equal keys keep their order if stable, also in descending order. With `first`, only so "
        "many are kept."
    ),
)


def _infer_top_k(types: Types, attrs: Attrs) -> Types:
    (operand,) = types
    k = int_attr(attrs, "k")
    if not operand.rank:
        raise TypeRuleError(f"it works along the last dim, and the operand is a scalar, {operand}")
    _check_ordered(operand)
    size = operand.shape[-1]
    if not 0 <= k <= size:
        raise TypeRuleError(f"k is {k}: it must be from 0 to {size}, the size of the last dim of {operand}")
    values = operand.with_shape((*operand.shape[:-1], k))
    return (values, values.with_dtype(s32))


def _top_k_factors(op: Op) -> FactorRule:
    shape, k = op.operands[0].shape, op.results[0].shape[-1]
    return _searched(shape, len(shape) - 1, k, 1, 2)


def _searched(shape: Sequence[int], dim: int, first: int, operands: int, results: int) -> FactorRule:
    """The rule of a searched dim: each device finds candidates in its part, which the op's own code compares."""
    rank = len(shape)
    kinds = (FactorKind.REDUCTION if d == dim else FactorKind.PARALLEL for d in range(rank))
    factors = (
        *(Factor(n, kind) for n, kind in zip(shape, kinds, strict=True)),
        Factor(first, FactorKind.NEED_REPLICATION),
    )
    given = tuple((d,) for d in range(rank))
    found = tuple((rank,) if d == dim else (d,) for d in range(rank))
    return FactorRule(factors, (given,) * operands, (found,) * results)


declare(
    "top_k",
    "sorting",
    1,
    _infer_top_k,
    _top_k_factors,
    (AttrDef("k", "int"),),
    flops=lambda op: op.operands[0].type.size,
    doc=(
        "The k largest elements along the last dim, largest first, and their indices, s32; of equals the first. "
        "A NaN is larger than any number, whatever its sign, and -0.0 equals 0.0."
    ),
)
