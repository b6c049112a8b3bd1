"""Ops that read and write at computed indices: dynamic_slice, dynamic_update_slice, gather, scatter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ir.literals import flattened
from ir.ops.addressing import (
    GATHER,
    SCATTER,
    Addressing,
    box_sizes,
    check_addressing,
    gather_addressing,
    scatter_addressing,
)
from ir.ops.creation import check_numbers
from ir.ops.declaration import (
    BITWISE,
    MONOTONE,
    AttrDef,
    Attrs,
    DimFactors,
    FactorKind,
    FactorRule,
    InKernels,
    Linearity,
    TensorFactors,
    TypeRuleError,
    Types,
    declare,
    updated,
)
from ir.ops.reduction import check_reducible, owner_reduction, reduction_kind
from ir.ops.rule_helpers import Factors, int_attr, ints_attr
from ir.program import Op, Value
from ir.sharding import REDUCTION_KINDS, ReductionKind
from ir.types import DType, TensorType


def _check_starts(operand: TensorType, starts: Types) -> None:
    if len(starts) != operand.rank:
        raise TypeRuleError(f"there must be a start for each of the {operand.rank} dims of {operand}")
    for t in starts:
        if t.rank or not t.dtype.is_integer:
            raise TypeRuleError(f"a start must be an integer scalar, and is {t}")


def _infer_dynamic_slice(types: Types, attrs: Attrs) -> Types:
    operand, starts = types[0], types[1:]
    sizes = ints_attr(attrs, "sizes")
    _check_starts(operand, starts)
    if len(sizes) != operand.rank:
        raise TypeRuleError(f"there must be a size for each of the {operand.rank} dims of {operand}")
    for d, (size, n) in enumerate(zip(sizes, operand.shape, strict=True)):
        if not 0 <= size <= n:
            raise TypeRuleError(f"size {size} of dim {d} must be between 0 and {n}, the size of that dim")
    return (operand.with_shape(sizes),)


def _dynamic_slice_factors(op: Op) -> FactorRule:
    """A dim taken whole is parallel. Of other dims each device has the elements of the box that it owns, and zeros
    elsewhere."""
    operand, factors = op.operands[0], Factors()
    left: list[DimFactors] = []
    right: list[DimFactors] = []
    for n, size in zip(operand.shape, op.result.shape, strict=True):
        if size == n:
            left.append(factors.new(n))
            right.append(left[-1])
            continue
        left.append(factors.new(n, FactorKind.REDUCTION, owner_reduction(operand.dtype)))
        right.append(factors.new(size, FactorKind.WINDOW))
    return factors.rule((tuple(left), *((),) * operand.type.rank), (tuple(right),))


declare(
    "dynamic_slice",
    "indexing",
    None,
    _infer_dynamic_slice,
    _dynamic_slice_factors,
    (AttrDef("sizes", "ints"),),
    linear=(Linearity(REDUCTION_KINDS, (0,)),),
    copied=-1,
    doc="A box of static sizes at computed starts, each clamped so that the box is inside the operand.",
    in_kernels=InKernels.SLICE,
)


def _infer_dynamic_update_slice(types: Types, attrs: Attrs) -> Types:
    if len(types) < 2:
        raise TypeRuleError("it takes an operand, an update, and a start for each dim of the operand")
    operand, update, starts = types[0], types[1], types[2:]
    _check_starts(operand, starts)
    if update.dtype != operand.dtype or update.rank != operand.rank:
        raise TypeRuleError(f"the update must be of the operand's element type and rank, {operand}, and is {update}")
    for d, (size, n) in enumerate(zip(update.shape, operand.shape, strict=True)):
        if size > n:
            raise TypeRuleError(f"dim {d} of the update, {update}, is larger than that of the operand, {operand}")
    return (operand,)


def _dynamic_update_slice_factors(op: Op) -> FactorRule:
    """The operand may be split: each device writes the part of the update that falls into its shard."""
    operand, update = op.operands[:2]
    factors = Factors()
    left: list[DimFactors] = []
    middle: list[DimFactors] = []
    for n, size in zip(operand.shape, update.shape, strict=True):
        left.append(factors.new(n))
        middle.append(left[-1] if size == n else factors.new(size, FactorKind.WINDOW))
    starts = ((),) * operand.type.rank
    return factors.rule((tuple(left), tuple(middle), *starts), (tuple(left),))


declare(
    "dynamic_update_slice",
    "indexing",
    None,
    _infer_dynamic_update_slice,
    _dynamic_update_slice_factors,
    linear=(Linearity(REDUCTION_KINDS, (0, 1)),),
    copied=1,
    in_place=(0,),
    unclaimed=(MONOTONE, BITWISE),
    doc="The operand with a box overwritten at computed starts, each clamped so that the box is inside it.",
    in_kernels=InKernels.UPDATE,
)

GATHER_MODES = ("clip", "fill")


def _infer_gather(types: Types, attrs: Attrs) -> Types:
    operand, indices = types
    sizes = ints_attr(attrs, "slice_sizes")
    _check_fill(attrs, operand.dtype)
    if len(sizes) != operand.rank:
        raise TypeRuleError(f"slice_sizes={list(sizes)} must have a size for each of the {operand.rank} dims")
    check_addressing(GATHER, attrs, operand, indices)
    dropped = ints_attr(attrs, GATHER.dropped)
    single = (*dropped, *ints_attr(attrs, GATHER.batching))
    for d, (size, n) in enumerate(zip(sizes, operand.shape, strict=True)):
        if not 0 <= size <= n:
            raise TypeRuleError(f"slice size {size} of dim {d} must be between 0 and {n}, the size of that dim")
        if d in single and size != (1 if d in dropped else min(1, n)):
            raise TypeRuleError(f"dim {d} is not in the result, so its slice size must be 1, and is {size}")
    window = ints_attr(attrs, GATHER.window)
    vector = int_attr(attrs, "index_vector_dim")
    inside = iter([size for d, size in enumerate(sizes) if d not in single])
    scanned = iter([n for d, n in enumerate(indices.shape) if d != vector])
    rank = len(window) + indices.rank - (vector < indices.rank)
    return (operand.with_shape(tuple(next(inside) if d in window else next(scanned) for d in range(rank))),)


def _check_fill(attrs: Attrs, dtype: DType) -> None:
    value = attrs["fill_value"]
    if value is None:
        return
    if attrs["mode"] != "fill":
        raise TypeRuleError("fill_value is what mode=fill puts in place of a box that is not inside")
    if isinstance(value, tuple):
        raise TypeRuleError("fill_value must be one number")
    check_numbers(flattened(value), dtype)


def starts_of_update(op: Op) -> tuple[Value, ...]:
    """The starts at which a dynamic_update_slice overwrites its operand, one for each dim; empty for other ops."""
    return op.operands[2:] if op.name == "dynamic_update_slice" else ()


def gather_fill(op: Op) -> float | int | bool | complex | None:
    """The number that a gather returns for boxes that are not inside the operand; None if it clamps them, and for other
    ops."""
    if op.name != "gather" or op.attrs["mode"] != "fill":
        return None
    value, dtype = op.attrs["fill_value"], op.result.dtype
    if isinstance(value, float | int | complex):
        return value
    if dtype.is_continuous:
        return math.nan if dtype.component.format.has_nan else -0.0
    return dtype.lowest if dtype.kind == "signed" else dtype.highest


def _operand_and_slices_dims(
    operand: Sequence[int],
    a: Addressing,
    batch: Mapping[int, DimFactors],
    factors: Factors,
    boxed: tuple[FactorKind, ReductionKind | None],
) -> tuple[TensorFactors, dict[int, DimFactors]]:
    """The factors of the operand's dims, and those of the slices dims that count within a box.

    `boxed` is the kind, and the reduction, of a dim that a box has only a part of.
    """
    window, shared = dict(a.window), dict(a.shared)
    left: list[DimFactors] = []
    slices: dict[int, DimFactors] = {}
    for d, n in enumerate(operand):
        if d in shared:
            left.append(batch[shared[d]])
        elif a.is_whole(d, operand):
            left.append(factors.new(n))
            slices[window[d]] = left[-1]
        else:
            left.append(factors.new(n, *boxed))
            if d in window:
                slices[window[d]] = factors.new(a.sizes[d], FactorKind.WINDOW)
    return tuple(left), slices


def _indices_dims(
    shape: Sequence[int], a: Addressing, batch: Mapping[int, DimFactors], factors: Factors
) -> TensorFactors:
    return tuple(
        factors.new(n, FactorKind.NEED_REPLICATION) if d == a.vector_dim else batch[d] for d, n in enumerate(shape)
    )


def _gather_factors(op: Op) -> FactorRule:
    """In dims that boxes have only a part of, each device has the elements of the boxes that it owns, and zeros
    elsewhere."""
    operand, indices = op.operands
    a, factors = gather_addressing(op), Factors()
    batch = {d: factors.new(indices.shape[d]) for d, _ in a.batch}
    boxed = (FactorKind.REDUCTION, owner_reduction(operand.dtype))
    left, slices = _operand_and_slices_dims(operand.shape, a, batch, factors, boxed)
    slices |= {s: batch[d] for d, s in a.batch}
    middle = _indices_dims(indices.shape, a, batch, factors)
    return factors.rule((left, middle), (tuple(slices[d] for d in range(op.result.type.rank)),))


def _gather_linearity(op: Op) -> tuple[Linearity, ...]:
    """The fill value must be added once, in the sum."""
    return (Linearity(REDUCTION_KINDS, (0,)),) if op.attrs["mode"] == "clip" else ()


declare(
    "gather",
    "indexing",
    2,
    _infer_gather,
    _gather_factors,
    (
        AttrDef("offset_dims", "ints"),
        AttrDef("collapsed_slice_dims", "ints", default=(), required=False),
        AttrDef("operand_batching_dims", "ints", default=(), required=False),
        AttrDef("indices_batching_dims", "ints", default=(), required=False),
        AttrDef("start_index_map", "ints"),
        AttrDef("index_vector_dim", "int"),
        AttrDef("slice_sizes", "ints"),
        AttrDef("mode", "word", default="clip", required=False, choices=GATHER_MODES),
        AttrDef("fill_value", "value", required=False, doc="with mode=fill; NaN, or the least or greatest integer"),
    ),
    linear=_gather_linearity,
    doc=(
        "A box of the operand for each index vector. One that is not inside the operand is brought there by "
        "clamping its index, or is fill_value if mode=fill. take(x, indices, dim) is the usual case."
    ),
    moves_along=True,
    in_kernels=InKernels.GATHER,
)

SCATTER_KINDS = ("replace", "sum", "prod", "max", "min")


def _infer_scatter(types: Types, attrs: Attrs) -> Types:
    operand, indices, updates = types
    if updates.dtype != operand.dtype:
        raise TypeRuleError(f"the updates must have the operand's element type, {operand.dtype}, and are {updates}")
    if attrs["kind"] != "replace":
        check_reducible(attrs["kind"], operand)
    check_addressing(SCATTER, attrs, operand, indices)
    window, vector = ints_attr(attrs, SCATTER.window), int_attr(attrs, "index_vector_dim")
    scanned = tuple(n for d, n in enumerate(indices.shape) if d != vector)
    if updates.rank != len(window) + len(scanned):
        raise TypeRuleError(
            f"the updates must have rank {len(window) + len(scanned)}, for {len(window)} update_window_dims and "
            f"{len(scanned)} dims of indices, and are {updates}"
        )
    if tuple(n for d, n in enumerate(updates.shape) if d not in window) != scanned:
        raise TypeRuleError(f"the dims of {updates} that are not in update_window_dims must be {list(scanned)}")
    absent = (*ints_attr(attrs, SCATTER.dropped), *ints_attr(attrs, SCATTER.batching))
    for d, (size, n) in enumerate(zip(box_sizes(attrs, operand, updates.shape), operand.shape, strict=True)):
        if size > n and d not in absent:
            raise TypeRuleError(f"boxes of size {size} do not fit into dim {d} of {operand}")
    return (operand,)


def _scatter_factors(op: Op) -> FactorRule:
    """Devices that have some of the updates write them into the operand on one device and into the identity on the
    others.

    Of dims that boxes have only a part of, each device writes what is in its shard.
    """
    operand, indices, updates = op.operands
    a, factors, kind = scatter_addressing(op), Factors(), reduction_kind(op.attrs)
    together = {i for _, i in a.shared}
    spread = (FactorKind.NEED_REPLICATION, None) if kind is None else (FactorKind.REDUCTION, kind)
    batch = {
        d: factors.new(indices.shape[d]) if d in together else factors.new(indices.shape[d], *spread)
        for d, _ in a.batch
    }
    left, slices = _operand_and_slices_dims(operand.shape, a, batch, factors, (FactorKind.PARALLEL, None))
    slices |= {s: batch[d] for d, s in a.batch}
    middle = _indices_dims(indices.shape, a, batch, factors)
    right = tuple(slices[d] for d in range(updates.type.rank))
    return factors.rule((left, middle, right), (left,))


def _scatter_linearity(op: Op) -> tuple[Linearity, ...]:
    kind = reduction_kind(op.attrs)
    return (Linearity(REDUCTION_KINDS if kind is None else (kind,), (0, 2)),)


declare(
    "scatter",
    "indexing",
    3,
    _infer_scatter,
    _scatter_factors,
    (
        AttrDef("update_window_dims", "ints"),
        AttrDef("inserted_window_dims", "ints", default=(), required=False),
        AttrDef("input_batching_dims", "ints", default=(), required=False),
        AttrDef("scatter_indices_batching_dims", "ints", default=(), required=False),
        AttrDef("scatter_dims_to_operand_dims", "ints"),
        AttrDef("index_vector_dim", "int"),
        AttrDef("kind", "word", choices=SCATTER_KINDS),
        AttrDef("unique_indices", "bool", default=False, required=False),
    ),
    terms=updated,
    linear=_scatter_linearity,
    doc=(
        "The operand with a box of updates combined into it for each index vector. A box that is not inside "
        "the operand is dropped, all of it. Of several that replace an element, the last in row-major order of the "
        "indices wins. unique_indices promises that no two boxes overlap."
    ),
)
