"""Ops that only rearrange elements: broadcast, reshape, transpose, slice, pad, reverse, concatenate, annotations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from ir.ops.declaration import (
    BITWISE,
    MONOTONE,
    AttrDef,
    Attrs,
    Factor,
    FactorKind,
    FactorRule,
    InKernels,
    Linearity,
    TypeRuleError,
    Types,
    Unclaimed,
    declare,
    largest,
)
from ir.ops.reshape_blocks import block_rule, blocks_of
from ir.ops.rule_helpers import (
    Factors,
    all_apart,
    check_dim,
    check_dims,
    each_by_itself,
    int_attr,
    ints_attr,
    pointwise,
    windows_along,
)
from ir.program import Op
from ir.sharding import REDUCTION_KINDS
from ir.types import TensorType

_MOVES_DATA = (Linearity(REDUCTION_KINDS, (0,)),)


def _infer_broadcast(types: Types, attrs: Attrs) -> Types:
    (operand,) = types
    shape, dims = ints_attr(attrs, "shape"), ints_attr(attrs, "dims")
    if len(dims) != operand.rank:
        raise TypeRuleError(f"dims={list(dims)} must name a result dim for each of the operand's {operand.rank} dims")
    check_dims(dims, len(shape), "result dim")
    for i, d in enumerate(dims):
        if operand.shape[i] not in (1, shape[d]):
            raise TypeRuleError(
                f"dim {i} of {operand} has size {operand.shape[i]} and goes to dim {d} of size {shape[d]}: "
                "it must have that size, or 1"
            )
    return (operand.with_shape(shape),)


def _broadcast_factors(op: Op) -> FactorRule:
    shape, dims = op.result.shape, ints_attr(op.attrs, "dims")
    operand: list[tuple[int, ...]] = []
    for i, d in enumerate(dims):
        operand.append((d,) if op.operands[0].shape[i] == shape[d] else ())
    return FactorRule(tuple(Factor(n) for n in shape), (tuple(operand),), (tuple((i,) for i in range(len(shape))),))


declare(
    "broadcast_in_dim",
    "layout",
    1,
    _infer_broadcast,
    _broadcast_factors,
    (AttrDef("shape", "ints"), AttrDef("dims", "ints")),
    linear=_MOVES_DATA,
    spreads_last=True,
    made_anywhere=True,
    keeps_dims=True,
    doc="Operand dim i becomes result dim dims[i]; size 1 is repeated.",
    in_kernels=InKernels.ELEMENTS,
)


def _infer_reshape(types: Types, attrs: Attrs) -> Types:
    (operand,) = types
    result = operand.with_shape(ints_attr(attrs, "shape"))
    if result.size != operand.size:
        raise TypeRuleError(
            f"{operand} has {operand.size} elements, {result} has {result.size}",
            f"the sizes multiply to {operand.size}: shape=[{operand.size}], or slice or pad it first",
        )
    return (result,)


def _reshape_factors(op: Op) -> FactorRule:
    """Factors of the coarsest common refinement: `(i j) k -> i (j k)`; dims that misalign stay whole."""
    source, target = op.operands[0].shape, op.result.shape
    if 0 in source:
        return all_apart(op)
    factors = Factors()
    left: list[list[int]] = [[] for _ in source]
    right: list[list[int]] = [[] for _ in target]
    for block in blocks_of(source, target):
        # Dims of both shapes are visited major to minor: what they share is a factor.
        ours, theirs = ({d: shape[d] for d in dims} for shape, dims in ((source, block.source), (target, block.target)))
        i, j = block.source.start, block.target.start
        while i in ours and j in theirs:
            common = math.gcd(ours[i], theirs[j])
            if ours[i] == 1:
                i += 1
            elif theirs[j] == 1:
                j += 1
            elif common > 1:
                (shared,) = factors.new(common)
                left[i].append(shared)
                right[j].append(shared)
                ours[i], theirs[j] = ours[i] // common, theirs[j] // common
            else:
                break
        # From the first misaligned dims on, the dims of the block stay whole.
        for side, rest in ((left, ours), (right, theirs)):
            for d, n in rest.items():
                side[d] += factors.new(n, FactorKind.NEED_REPLICATION) if n > 1 else ()
    return factors.rule([tuple(map(tuple, left))], [tuple(map(tuple, right))])


declare(
    "reshape",
    "layout",
    1,
    _infer_reshape,
    _reshape_factors,
    (AttrDef("shape", "ints"),),
    linear=_MOVES_DATA,
    spreading=block_rule,
    doc="The same elements, in row-major order, in another shape.",
    in_kernels=InKernels.VIEW,
)


def _infer_transpose(types: Types, attrs: Attrs) -> Types:
    (operand,) = types
    perm = ints_attr(attrs, "perm")
    if sorted(perm) != list(range(operand.rank)):
        raise TypeRuleError(f"perm={list(perm)} must name each of the {operand.rank} dims of {operand} once")
    return (operand.with_shape(tuple(operand.shape[p] for p in perm)),)


def _transpose_factors(op: Op) -> FactorRule:
    perm = ints_attr(op.attrs, "perm")
    factors = tuple(Factor(n) for n in op.operands[0].shape)
    return FactorRule(factors, (tuple((i,) for i in range(len(perm))),), (tuple((p,) for p in perm),))


declare(
    "transpose",
    "layout",
    1,
    _infer_transpose,
    _transpose_factors,
    (AttrDef("perm", "ints"),),
    linear=_MOVES_DATA,
    keeps_dims=True,
    doc="Result dim i is operand dim perm[i].",
    in_kernels=InKernels.TRANSPOSITION,
)


def _per_dim(name: str, values: Sequence[int], rank: int) -> None:
    if len(values) != rank:
        raise TypeRuleError(f"{name}={list(values)} must have a number for each of the operand's {rank} dims")


def slice_along(shape: Sequence[int], dim: int, start: int, limit: int, stride: int = 1) -> dict[str, Any]:
    """The attributes of a slice of a tensor of that shape, along one dim."""

    def of(others: Sequence[int], own: int) -> tuple[int, ...]:
        return (*others[:dim], own, *others[dim + 1 :])

    strides = of((1,) * len(shape), stride) if stride > 1 else ()
    return {"start": of((0,) * len(shape), start), "limit": of(shape, limit), "stride": strides}


def _infer_slice(types: Types, attrs: Attrs) -> Types:
    (operand,) = types
    start, limit = ints_attr(attrs, "start"), ints_attr(attrs, "limit")
    stride = ints_attr(attrs, "stride") or (1,) * operand.rank
    for name, values in (("start", start), ("limit", limit), ("stride", stride)):
        _per_dim(name, values, operand.rank)
    for d, (low, high, step, n) in enumerate(zip(start, limit, stride, operand.shape, strict=True)):
        if not (0 <= low <= high <= n and step >= 1):
            raise TypeRuleError(
                f"slice {low}:{high}:{step} of dim {d} of {operand}: "
                f"0 <= start <= limit <= {n} and stride >= 1 must hold"
            )
    shape = tuple(-(-(high - low) // step) for low, high, step in zip(start, limit, stride, strict=True))
    return (operand.with_shape(shape),)


def _slice_factors(op: Op) -> FactorRule:
    """A dim taken whole is parallel; any other is a window."""
    pairs = zip(op.operands[0].shape, op.result.shape, strict=True)
    return windows_along(op, op.operands[0].shape, [d for d, (a, b) in enumerate(pairs) if a != b])


declare(
    "slice",
    "layout",
    1,
    _infer_slice,
    _slice_factors,
    (AttrDef("start", "ints"), AttrDef("limit", "ints"), AttrDef("stride", "ints", default=(), required=False)),
    linear=_MOVES_DATA,
    copied=-1,
    doc="Elements start, start + stride, … below limit of each dim.",
    moves_along=True,
    in_kernels=InKernels.SLICE,
)


def _infer_pad(types: Types, attrs: Attrs) -> Types:
    operand, value = types
    low, high = ints_attr(attrs, "low"), ints_attr(attrs, "high")
    interior = ints_attr(attrs, "interior") or (0,) * operand.rank
    if value != TensorType((), operand.dtype):
        raise TypeRuleError(f"the padding value must be {operand.dtype}[], and is {value}")
    for name, values in (("low", low), ("high", high), ("interior", interior)):
        _per_dim(name, values, operand.rank)
    shape: list[int] = []
    for d, (a, b, gap, n) in enumerate(zip(low, high, interior, operand.shape, strict=True)):
        if gap < 0:
            raise TypeRuleError(f"interior padding of dim {d} is {gap}: it must not be negative")
        size = a + b + n + max(0, n - 1) * gap
        if size < 0:
            raise TypeRuleError(f"padding of dim {d} by {a} and {b} leaves {size} elements of {operand}")
        shape.append(size)
    return (operand.with_shape(tuple(shape)),)


def _pad_factors(op: Op) -> FactorRule:
    rank = op.result.type.rank
    low, high = ints_attr(op.attrs, "low"), ints_attr(op.attrs, "high")
    interior = ints_attr(op.attrs, "interior") or (0,) * rank
    return windows_along(op, op.operands[0].shape, [d for d in range(rank) if low[d] or high[d] or interior[d]])


declare(
    "pad",
    "layout",
    2,
    _infer_pad,
    _pad_factors,
    (AttrDef("low", "ints"), AttrDef("high", "ints"), AttrDef("interior", "ints", default=(), required=False)),
    linear=(Linearity(REDUCTION_KINDS, (0, 1)),),
    unclaimed=(MONOTONE, BITWISE),
    doc="Adds copies of a scalar before, after and between the elements; negative numbers take elements away.",
    moves_along=True,
    in_kernels=InKernels.ELEMENTS,
)


def _infer_reverse(types: Types, attrs: Attrs) -> Types:
    check_dims(ints_attr(attrs, "dims"), types[0].rank)
    return types


declare(
    "reverse",
    "layout",
    1,
    _infer_reverse,
    lambda op: windows_along(op, op.result.shape, ints_attr(op.attrs, "dims")),
    (AttrDef("dims", "ints"),),
    linear=_MOVES_DATA,
    doc="The elements of these dims in opposite order.",
    moves_along=True,
    in_kernels=InKernels.ELEMENTS,
)


def _infer_concatenate(types: Types, attrs: Attrs) -> Types:
    if not types:
        raise TypeRuleError("there is nothing to concatenate")
    dim = check_dim(int_attr(attrs, "dim"), types[0].rank)
    for t in types[1:]:
        same = t.rank == types[0].rank and all(
            d == dim or a == b for d, (a, b) in enumerate(zip(t.shape, types[0].shape, strict=True))
        )
        if not same or t.dtype != types[0].dtype:
            raise TypeRuleError(
                f"{types[0]} and {t} must be alike in all but dim {dim}",
                "concatenate along the dim in which they differ, or pad the smaller one",
            )
    shape = list(types[0].shape)
    shape[dim] = sum(t.shape[dim] for t in types)
    return (types[0].with_shape(tuple(shape)),)


def _concatenate_factors(op: Op) -> FactorRule:
    """The concatenated dim is a single window, of the result's size, that all operands share."""
    return windows_along(op, op.result.shape, [int_attr(op.attrs, "dim")])


declare(
    "concatenate",
    "layout",
    None,
    _infer_concatenate,
    _concatenate_factors,
    (AttrDef("dim", "int"),),
    linear=lambda op: (Linearity(REDUCTION_KINDS, tuple(range(len(op.operands)))),),
    unclaimed=(MONOTONE,),
    moves_along=True,
    in_kernels=InKernels.CONCATENATION,
)


def _infer_unchanged(types: Types, attrs: Attrs) -> Types:
    return types


declare(
    "shard",
    "layout",
    1,
    _infer_unchanged,
    pointwise,
    (
        AttrDef("group", "int", required=False, doc="results of all annotations of this group are sharded alike"),
        AttrDef(
            "passes",
            "word",
            "both",
            required=False,
            choices=("both", "forward", "backward", "none"),
            doc="which way propagation goes through it",
        ),
    ),
    stages=("global",),
    linear=_MOVES_DATA,
    doc="An annotation: the same tensor, placed as the result's sharding says (GShard, section 3.2).",
    in_kernels=InKernels.VIEW,
)

ANNOTATION: Attrs = MappingProxyType({"group": None, "passes": "both"})
"""The attributes of a `shard` that only annotates its operand with the sharding of its result."""


def is_repetition(op: Op) -> bool:
    """Whether the op only repeats the elements of its operand."""
    return op.name == "broadcast_in_dim"


def is_annotation(op: Op) -> bool:
    """Whether the op only annotates its operand."""
    return op.name == "shard"


def is_hint(op: Op) -> bool:
    """Whether a `shard` specifies tensors that are sharded equally, or a direction of propagation."""
    return op.attrs.get("group") is not None or op.attrs.get("passes", "both") != "both"


declare(
    "optimization_barrier",
    "layout",
    None,
    _infer_unchanged,
    each_by_itself,
    passes_each=True,
    terms=largest,
    unclaimed=(MONOTONE, Unclaimed(("sum", "prod", "max", "min"), "keeps values as they were written")),
    doc="The operands, all computed before any result is used.",
    in_kernels=InKernels.VIEW,
)
