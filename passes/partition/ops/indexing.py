"""Ops at computed indices, on shards: each device reads or writes the elements of a box that it owns, and no operand
moves.

A read returns zeros for elements of other devices, so that the sum over the devices is the whole tensor's. In floats
the zero is -0.0, which leaves every number unchanged, -0.0 included. A write to elements of other devices is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ir.builder import RegionBuilder
from ir.mesh import Axes
from ir.ops import FactorKind
from ir.ops.addressing import GATHER, SCATTER, Addressing, gather_addressing, scatter_addressing
from ir.ops.indexing import gather_fill
from ir.ops.reduction import neutral_of, reduction_kind, zero_of
from ir.program import Value
from ir.sharding import shard_size
from ir.types import TensorType, s32
from passes.partition.context import OpContext
from passes.partition.registry import partitions
from passes.partition.shards import integer, on_the_first, padding_of, positions, shard_start, splat


@partitions("dynamic_slice", ignores_padding_of=(0,))
def dynamic_slice(c: OpContext) -> Sequence[Value]:
    """Along split dims, reads the part of the box that is in the shard. Dims that the box takes whole are taken whole
    on shards too."""
    sizes, starts = c.local_type().shape, c.operands[1:]
    parts = _parts(c, c.op.result.shape, starts)
    if not parts:
        return c.emit(c.operands[0], *starts, sizes=sizes)
    b = c.builder
    piece = _read(b, c.operands[0], starts, parts, sizes, c.op.result.name)
    return (_spread(b, piece, parts, c.op.result.name),)


@partitions("dynamic_update_slice")
def dynamic_update_slice(c: OpContext) -> Sequence[Value]:
    """Along split dims, writes the part of the update that is in the shard; all other elements are unchanged."""
    operand, update, *starts = c.operands
    parts = _parts(c, c.op.operands[1].shape, starts)
    if not parts:
        return c.emit(*c.operands)
    b = c.builder
    kept = _read(b, operand, starts, parts, update.shape, "kept")
    new = _cut(b, update, parts)
    update = b.op("select", _covered(b, kept.shape, parts), new, kept, name=update.name)
    return c.emit(operand, update, *_places(b, starts, parts))


@partitions("gather", ignores_padding_of=(0,))
def gather(c: OpContext) -> Sequence[Value]:
    """Gathers from the shard. Indices are clamped to the bounds of the whole operand, so that no padding is read."""
    a, b, shape = gather_addressing(c.op), c.builder, c.op.operands[0].shape
    x, indices = c.operands
    split = _split_dims(c, a)
    sizes = tuple(x.shape[d] if a.is_whole(d, shape) else n for d, n in enumerate(a.sizes))
    if not split:
        return c.emit(x, indices, **{**c.op.attrs, "slice_sizes": sizes})
    given, addressed = _components(b, indices, a, split)
    places: list[Value] = []
    inside: list[Value] = []
    for component, d in zip(given, addressed, strict=True):
        place = component
        if d in split or indices.dtype != s32:
            place = _s32(b, component, 0, shape[d] - a.sizes[d])
        if d in split:
            place, mine = _relative(b, place, shape[d], split[d])
            inside.extend([mine] if a.sizes[d] == 1 else [])
        places.append(_plus(b, place, _margin(a, split)[d]))
    attrs = {**c.op.attrs, "slice_sizes": sizes, GATHER.addressed: addressed, "mode": "clip", "fill_value": None}
    zero = splat(b, zero_of(x.dtype), TensorType((), x.dtype))
    (result,) = c.emit(_with_margin(b, x, _margin(a, split), zero), _together(b, places, a), **attrs)
    if inside:
        mine = _over_boxes(b, _all(b, inside), indices, a, result)
        result = b.op("select", mine, result, splat(b, zero_of(result.dtype), result.type), name=result.name)
    return (_filled(c, a, split, given, result),)


def _filled(c: OpContext, a: Addressing, split: Mapping[int, Axes], given: Sequence[Value], result: Value) -> Value:
    """The elements that the device read. Boxes outside the whole operand are filled on one device only, because the
    results are summed."""
    b, fill, operand = c.builder, gather_fill(c.op), c.op.operands[0]
    if fill is None or not a.addressed:
        return result
    valid = [_valid(b, i, operand.shape[d] - a.sizes[d]) for i, d in zip(given, a.addressed, strict=False)]
    elsewhere, axes = zero_of(result.dtype), tuple(axis for axes in split.values() for axis in axes)
    filled = on_the_first(b, splat(b, fill, result.type), axes, elsewhere)
    return b.op("select", _over_boxes(b, _all(b, valid), c.operands[1], a, result), result, filled, name=result.name)


@partitions("scatter")
def scatter(c: OpContext) -> Sequence[Value]:
    """Scatters into the shard. Indices are relative to its beginning, so that updates outside it are dropped."""
    a, b, shape = scatter_addressing(c.op), c.builder, c.op.operands[0].shape
    x, indices, updates = c.operands
    split, spread = _split_dims(c, a), _spread_axes(c)
    if spread:
        x = _counted_once(c, x, spread)
    if not split:
        unique = bool(c.op.attrs["unique_indices"]) and not spread
        return c.emit(x, indices, updates, **{**c.op.attrs, "unique_indices": unique})
    given, addressed = _components(b, indices, a, split)
    places: list[Value] = []
    for component, d in zip(given, addressed, strict=True):
        place = component if indices.dtype == s32 else _s32(b, component, -1, shape[d])
        if d in split:
            place, _ = _relative(b, place, shape[d], split[d])
        if d in split and a.sizes[d] != 1:
            valid = _valid(b, component, shape[d] - a.sizes[d])
            place = b.op("select", valid, _plus(b, place, a.sizes[d]), splat(b, -1, place.type), name="place")
        places.append(place)
    attrs = {**c.op.attrs, "unique_indices": False, SCATTER.addressed: addressed}
    x = _with_margin(b, x, _margin(a, split), padding_of(b, TensorType((), x.dtype)))
    (result,) = c.emit(x, _together(b, places, a), updates, **attrs)
    return (_without_margin(b, result, _margin(a, split)),)


# One box: dynamic_slice and dynamic_update_slice.


@dataclass(frozen=True, slots=True)
class _Part:
    """The part that a shard may have of a box of `size` elements of a split dim: `count` elements of the shard from
    `place` on.

    The first of them is element `offset` of the box. Those whose element number is out of range are not in the box.
    """

    dim: int
    size: int
    count: int
    place: Value
    offset: Value


def _parts(c: OpContext, sizes: Sequence[int], starts: Sequence[Value]) -> tuple[_Part, ...]:
    """The part of each split dim that the box does not have all of. Starts are clamped as in the whole tensor."""
    b, shape, sharding = c.builder, c.op.operands[0].shape, c.strategy.operands[0]
    parts: list[_Part] = []
    for d, (n, size, axes) in enumerate(zip(shape, sizes, sharding.axes, strict=True)):
        if axes and size != n:
            parts.append(_part(b, d, size, _s32(b, starts[d], 0, n - size), n, axes))
    return tuple(parts)


def _part(b: RegionBuilder, dim: int, size: int, start: Value, n: int, axes: Axes) -> _Part:
    """The part of the box from `start`, s32[], of a dim of size n."""
    chunk = shard_size(n, axes)
    count = min(size, chunk)
    first = b.op("subtract", start, shard_start(b, n, axes), name="first")
    least, most = splat(b, 0, first.type), splat(b, chunk - count, first.type)
    place = b.op("clamp", least, first, most, name="place")
    return _Part(dim, size, count, place, b.op("subtract", place, first, name="offset"))


def _places(b: RegionBuilder, starts: Sequence[Value], parts: Sequence[_Part]) -> list[Value]:
    """The starts, replaced by the places of the parts. The places fit in the starts' types, because no place is above a
    start that is not negative."""
    places = list(starts)
    for part in parts:
        dtype = starts[part.dim].dtype
        places[part.dim] = part.place if dtype == s32 else b.op("convert", part.place, name="place", dtype=dtype)
    return places


def _read(
    b: RegionBuilder, x: Value, starts: Sequence[Value], parts: Sequence[_Part], sizes: Sequence[int], name: str
) -> Value:
    """The elements that the shard may have of the box."""
    counts = {part.dim: part.count for part in parts}
    sizes = tuple(counts.get(d, size) for d, size in enumerate(sizes))
    return b.op("dynamic_slice", x, *_places(b, starts, parts), name=name, sizes=sizes)


def _spread(b: RegionBuilder, piece: Value, parts: Sequence[_Part], name: str) -> Value:
    """The box with the shard's elements, and zeros elsewhere."""
    zero = zero_of(piece.dtype)
    single = [part for part in parts if part.size == 1]
    if single:
        piece = b.op("select", _all(b, [_is_first(b, p) for p in single]), piece, splat(b, zero, piece.type), name=name)
    longer = {part.dim: part for part in parts if part.size != 1}
    if not longer:
        return piece
    fill = splat(b, zero, TensorType((), piece.dtype))
    sizes = {d: part.size for d, part in longer.items()}

    def start(d: int) -> Value:
        return b.op("subtract", integer(b, sizes[d]), longer[d].offset, name="shift")

    return _shifted(b, piece, fill, sizes, start, name)


def _cut(b: RegionBuilder, update: Value, parts: Sequence[_Part]) -> Value:
    """The update's elements for the shard's part of the box, at their positions; arbitrary elements elsewhere."""
    longer = {part.dim: part for part in parts if part.size != 1}
    if not longer:
        return update
    fill = padding_of(b, TensorType((), update.dtype))
    sizes = {d: part.count for d, part in longer.items()}

    def start(d: int) -> Value:
        return b.op("add", longer[d].offset, integer(b, sizes[d]), name="shift")

    return _shifted(b, update, fill, sizes, start, update.name)


def _shifted(
    b: RegionBuilder, x: Value, fill: Value, sizes: Mapping[int, int], start: Callable[[int], Value], name: str
) -> Value:
    """`x` shifted: in each of these dims that many elements, from `start` on, of `x` with that many elements of `fill`
    before it and behind."""
    margin = tuple(sizes.get(d, 0) for d in range(x.type.rank))
    padded = b.op("pad", x, fill, name=name, low=margin, high=margin)
    shifts = {d: start(d) for d in sizes}
    starts = [shifts[d] if d in shifts else integer(b, 0) for d in range(x.type.rank)]
    kept = tuple(sizes.get(d, n) for d, n in enumerate(x.shape))
    return b.op("dynamic_slice", padded, *starts, name=name, sizes=kept)


def _covered(b: RegionBuilder, shape: Sequence[int], parts: Sequence[_Part]) -> Value:
    """Which elements of the shard's part of the box, of that shape, are in the box; a scalar if it is all or none."""
    single = [_is_first(b, part) for part in parts if part.size == 1]
    longer = [part for part in parts if part.size != 1]
    if not longer:
        return _all(b, single)
    spread = [b.op("broadcast_in_dim", one, name="inside", shape=tuple(shape), dims=()) for one in single]
    for part in longer:
        spread.append(_within(b, positions(b, tuple(shape), part.dim, part.offset), part.size))
    return _all(b, spread)


def _is_first(b: RegionBuilder, part: _Part) -> Value:
    """Whether the shard has the single index of the box."""
    return b.op("compare", part.offset, integer(b, 0), name="inside", direction="EQ")


def _all(b: RegionBuilder, conditions: Sequence[Value]) -> Value:
    result = conditions[0]
    for condition in conditions[1:]:
        result = b.op("and", result, condition, name="inside")
    return result


def _within(b: RegionBuilder, place: Value, size: int) -> Value:
    """Whether positions, s32, are from 0 to size - 1."""
    behind = b.op("compare", place, splat(b, 0, place.type), name="inside", direction="GE")
    before = b.op("compare", place, splat(b, size, place.type), name="inside", direction="LT")
    return b.op("and", behind, before, name="inside")


# Indices.


def _s32(b: RegionBuilder, index: Value, low: int, high: int) -> Value:
    """The indices clamped to these bounds, as s32."""
    dtype = index.dtype
    bounds = (max(low, int(dtype.lowest)), min(high, int(dtype.highest)))
    least, most = (splat(b, bound, TensorType((), dtype)) for bound in bounds)
    index = b.op("clamp", least, index, most, name="place")
    return index if dtype == s32 else b.op("convert", index, name="place", dtype=s32)


def _relative(b: RegionBuilder, index: Value, n: int, axes: Axes) -> tuple[Value, Value]:
    """Indices, s32, of a split dim of size n, relative to the beginning of the shard, and whether they are in the
    shard."""

    def spread(scalar: Value) -> Value:
        return b.op("broadcast_in_dim", scalar, name=scalar.name, shape=index.shape, dims=()) if index.shape else scalar

    place = b.op("subtract", index, spread(shard_start(b, n, axes)), name="place")
    return place, _within(b, place, shard_size(n, axes))


def _components(
    b: RegionBuilder, indices: Value, a: Addressing, split: Mapping[int, Axes]
) -> tuple[list[Value], tuple[int, ...]]:
    """The components of index vectors for all operand dims that are addressed or split, and these dims.

    Each component has the shape of the indices, with size 1 along the vectors, or as an additional last dim if the
    vectors are scalars.
    """
    rank = indices.type.rank
    others = tuple(d for d in split if d not in a.addressed)
    if a.vector_dim is None and not others:
        return [indices], a.addressed
    if a.vector_dim is None:
        shape = (*indices.shape, 1)
        parts = [b.op("reshape", indices, name="component", shape=shape)]
    else:
        shape = tuple(1 if d == a.vector_dim else n for d, n in enumerate(indices.shape))
        parts = [indices] if len(a.addressed) == 1 else []
    for i in range(len(parts), len(a.addressed)):
        start = tuple(i if d == a.vector_dim else 0 for d in range(rank))
        limit = tuple(i + 1 if d == a.vector_dim else n for d, n in enumerate(indices.shape))
        parts.append(b.op("slice", indices, name="component", start=start, limit=limit))
    zeros = [splat(b, 0, TensorType(shape, indices.dtype)) for _ in others]
    return [*parts, *zeros], (*a.addressed, *others)


def _together(b: RegionBuilder, components: Sequence[Value], a: Addressing) -> Value:
    """Index vectors of these components."""
    if len(components) == 1:
        return components[0]
    dim = components[0].type.rank - 1 if a.vector_dim is None else a.vector_dim
    return b.op("concatenate", *components, name="indices", dim=dim)


def _split_dims(c: OpContext, a: Addressing) -> dict[int, Axes]:
    """The operand dims that are split and that boxes have only a part of, from a computed index or from 0 on."""
    shape, axes = c.op.operands[0].shape, c.strategy.operands[0].axes
    shared = dict(a.shared)
    return {d: axes[d] for d in range(len(shape)) if axes[d] and d not in shared and not a.is_whole(d, shape)}


def _margin(a: Addressing, split: Mapping[int, Axes]) -> tuple[int, ...]:
    """How far boxes may extend beyond a shard: along split dims in which they have several elements."""
    return tuple(size if d in split and size != 1 else 0 for d, size in enumerate(a.sizes))


def _with_margin(b: RegionBuilder, x: Value, margin: tuple[int, ...], fill: Value) -> Value:
    """The shard with a margin of `fill`, so that boxes that extend beyond it fit."""
    return b.op("pad", x, fill, name=x.name, low=margin, high=margin) if any(margin) else x


def _without_margin(b: RegionBuilder, x: Value, margin: tuple[int, ...]) -> Value:
    if not any(margin):
        return x
    limit = tuple(n - size for n, size in zip(x.shape, margin, strict=True))
    return b.op("slice", x, name=x.name, start=margin, limit=limit)


def _valid(b: RegionBuilder, component: Value, most: int) -> Value:
    """Which indices belong to boxes inside the operand: those from 0 to `most`."""
    dtype = component.dtype
    ends = [splat(b, n, component.type) for n in (0, min(most, int(dtype.highest)))]
    behind = b.op("compare", component, ends[0], name="valid", direction="GE")
    return b.op("and", behind, b.op("compare", component, ends[1], name="valid", direction="LE"), name="valid")


def _over_boxes(b: RegionBuilder, condition: Value, indices: Value, a: Addressing, result: Value) -> Value:
    """A condition on each index vector, broadcast over the elements of its box."""
    scanned = tuple(indices.shape[d] for d, _ in a.batch)
    if condition.shape != scanned:
        condition = b.op("reshape", condition, name=condition.name, shape=scanned)
    dims = tuple(s for _, s in a.batch)
    return b.op("broadcast_in_dim", condition, name=condition.name, shape=result.shape, dims=dims)


def _plus(b: RegionBuilder, place: Value, k: int) -> Value:
    return b.op("add", place, splat(b, k, place.type), name="place") if k else place


# Updates that are on several devices.


def _spread_axes(c: OpContext) -> Axes:
    """The axes over which devices hold different updates of the same elements."""
    return tuple(a for f, axes in c.strategy.factors if c.rule.factors[f].kind is FactorKind.REDUCTION for a in axes)


def _counted_once(c: OpContext, x: Value, axes: Axes) -> Value:
    """The operand on the first device along the axes, and the identity of the update on the others, so that it counts
    once."""
    kind = reduction_kind(c.op.attrs)
    return x if kind not in ("sum", "prod") else on_the_first(c.builder, x, axes, neutral_of(kind, x.dtype))
