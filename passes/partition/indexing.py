"""Ops at computed indices, on shards: the device that owns an index reads or writes there, and no operand moves.

A read by those that do not own the index gives zeros, chosen with `select`, so that the sum over the devices is what
the owner read: -0.0 in floats, which added to a number, be it -0.0, gives that number. A write by those that do not own
the index is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

from ir.builder import RegionBuilder
from ir.ops import FactorKind
from ir.ops.addressing import Addressing, gather_addressing, scatter_addressing
from ir.ops.indexing import scatter_reduction
from ir.program import Value
from ir.sharding import shard_size
from ir.types import DType, TensorType, pred, s32
from passes.partition.local import Axes
from passes.partition.padding import identity_of, shard_index, shard_start, splat
from passes.partition.partitioner import OpContext


def dynamic_slice(c: OpContext) -> Sequence[Value]:
    """Other dims that are split are taken whole."""
    starts, inside = _local_starts(c, c.op.result.shape)
    results = c.emit(c.operands[0], *starts, sizes=c.local_type().shape)
    if inside is None:
        return results
    (result,) = results
    return (
        c.builder.op("select", inside, result, splat(c.builder, _zero(result.dtype), result.type), name=result.name),
    )


def dynamic_update_slice(c: OpContext) -> Sequence[Value]:
    """Those that do not own the index write what is there already."""
    operand, update = c.operands[:2]
    starts, inside = _local_starts(c, c.op.operands[1].shape)
    if inside is not None:
        kept = c.builder.op("dynamic_slice", operand, *starts, name="kept", sizes=update.shape)
        update = c.builder.op("select", inside, update, kept, name=update.name)
    return c.emit(operand, update, *starts)


def gather(c: OpContext) -> Sequence[Value]:
    """Indices are clamped as those of the whole operand, so that no padding is read."""
    a, operand = gather_addressing(c.op), c.op.operands[0]
    x, indices = c.operands
    split = _split_dims(c, a)
    sizes = tuple(x.shape[d] if a.is_whole(d, operand.shape) else n for d, n in enumerate(a.sizes))
    if not split:
        return c.emit(x, indices, **{**c.op.attrs, "slice_sizes": sizes})
    b = c.builder
    inside: Value | None = None
    components: list[Value] = []
    for component, d in zip(_components(b, indices, a), a.addressed, strict=True):
        if d not in split and indices.dtype == s32:
            components.append(component)
            continue
        place = _s32(b, component, 0, operand.shape[d] - a.sizes[d])
        if d in split:
            place, mine = _relative(b, place, operand.shape[d], split[d])
            inside = mine if inside is None else b.op("and", inside, mine, name="inside")
        components.append(place)
    assert inside is not None
    (result,) = c.emit(x, _together(b, components, a), **{**c.op.attrs, "slice_sizes": sizes})
    scanned = tuple(indices.shape[d] for d, _ in a.batch)
    if inside.shape != scanned:
        inside = b.op("reshape", inside, name="inside", shape=scanned)
    inside = b.op("broadcast_in_dim", inside, name="inside", shape=result.shape, dims=tuple(s for _, s in a.batch))
    return (b.op("select", inside, result, splat(b, _zero(result.dtype), result.type), name=result.name),)


def scatter(c: OpContext) -> Sequence[Value]:
    """Indices count from where the shard begins, so that updates elsewhere are dropped."""
    a, b, operand = scatter_addressing(c.op), c.builder, c.op.operands[0]
    x, indices, updates = c.operands
    split, spread = _split_dims(c, a), _spread_axes(c)
    if spread:
        x = _on_the_first(c, x, spread)
    if split:
        components: list[Value] = []
        for component, d in zip(_components(b, indices, a), a.addressed, strict=True):
            n = operand.shape[d]
            place = component if indices.dtype == s32 else _s32(b, component, -1, n)
            components.append(_relative(b, place, n, split[d])[0] if d in split else place)
        indices = _together(b, components, a)
    unique = bool(c.op.attrs["unique_indices"]) and not split and not spread
    return c.emit(x, indices, updates, **{**c.op.attrs, "unique_indices": unique})


def _zero(dtype: DType) -> float | int | bool:
    """What a sum, or in pred an "or", leaves as it is to the bit."""
    return -0.0 if dtype.is_float else identity_of("or" if dtype == pred else "sum", dtype)


# One index: dynamic_slice and dynamic_update_slice.


def _local_starts(c: OpContext, sizes: Sequence[int]) -> tuple[list[Value], Value | None]:
    """Starts within the shard in the dims that are split and of which boxes have one index; and whether they lie there.

    None stands for everywhere.
    """
    operand, layout = c.op.operands[0], c.assignment.operands[0]
    starts = list(c.operands[-len(sizes) :]) if sizes else []
    inside: Value | None = None
    b = c.builder
    for d, (n, size, axes) in enumerate(zip(operand.shape, sizes, layout.axes, strict=True)):
        if not axes or size != 1 or size == n:
            continue
        place, mine = _relative(b, _s32(b, starts[d], 0, n - 1), n, axes)
        inside = mine if inside is None else b.op("and", inside, mine, name="inside")
        if starts[d].dtype != s32:
            place = b.op("maximum", place, splat(b, 0, place.type), name="start")
            place = b.op("convert", place, name="start", dtype=starts[d].dtype)
        starts[d] = place
    return starts, inside


# Indices.


def _s32(b: RegionBuilder, index: Value, low: int, high: int) -> Value:
    """The indices clamped to these bounds, as s32."""
    dtype = index.dtype
    bounds = (max(low, int(dtype.lowest)), min(high, int(dtype.highest)))
    least, most = (splat(b, bound, TensorType((), dtype)) for bound in bounds)
    index = b.op("clamp", least, index, most, name="place")
    return index if dtype == s32 else b.op("convert", index, name="place", dtype=s32)


def _relative(b: RegionBuilder, index: Value, n: int, axes: Axes) -> tuple[Value, Value]:
    """Indices, s32, of a split dim of size n counted from where the shard begins; and whether they lie in the shard."""

    def spread(scalar: Value) -> Value:
        return b.op("broadcast_in_dim", scalar, name=scalar.name, shape=index.shape, dims=()) if index.shape else scalar

    place = b.op("subtract", index, spread(shard_start(b, n, axes)), name="place")
    behind = b.op("compare", place, splat(b, 0, place.type), name="inside", direction="GE")
    before = b.op("compare", place, splat(b, shard_size(n, axes), place.type), name="inside", direction="LT")
    return place, b.op("and", behind, before, name="inside")


def _components(b: RegionBuilder, indices: Value, a: Addressing) -> list[Value]:
    """For each component of the index vectors, a tensor as the indices but of size 1 along the vectors."""
    if a.vector_dim is None or len(a.addressed) == 1:
        return [indices]
    parts: list[Value] = []
    for i in range(len(a.addressed)):
        start = tuple(i if d == a.vector_dim else 0 for d in range(indices.type.rank))
        limit = tuple(i + 1 if d == a.vector_dim else n for d, n in enumerate(indices.shape))
        parts.append(b.op("slice", indices, name="component", start=start, limit=limit))
    return parts


def _together(b: RegionBuilder, components: Sequence[Value], a: Addressing) -> Value:
    """Index vectors of these components."""
    if len(components) == 1:
        return components[0]
    return b.op("concatenate", *components, name="indices", dim=a.vector_dim)


def _split_dims(c: OpContext, a: Addressing) -> dict[int, Axes]:
    """The operand dims that are split and of which each box has one computed index."""
    shape, axes = c.op.operands[0].shape, c.assignment.operands[0].axes
    return {d: axes[d] for d in range(len(shape)) if axes[d] and a.is_single(d, shape)}


# Updates that lie on several devices.


def _spread_axes(c: OpContext) -> Axes:
    """The axes over which devices hold different updates of the same elements."""
    return tuple(a for f, axes in c.assignment.factors if c.rule.factors[f].kind is FactorKind.REDUCTION for a in axes)


def _on_the_first(c: OpContext, x: Value, axes: Axes) -> Value:
    """The operand on the first device along the axes; elsewhere what changes nothing, for it must count once."""
    kind = scatter_reduction(c.op.attrs)
    if kind not in ("sum", "prod"):
        return x
    b = c.builder
    index = shard_index(b, axes)
    first = b.op("compare", index, splat(b, 0, index.type), name="first", direction="EQ")
    identity = _zero(x.dtype) if kind == "sum" else identity_of(kind, x.dtype)
    return b.op("select", first, x, splat(b, identity, x.type), name=x.name)
