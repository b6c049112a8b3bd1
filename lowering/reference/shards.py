"""Conversion between global arrays and the shards of all devices.

Padding of an uneven dim is poisoned (NaN, extremes for types without NaN, arbitrary booleans; other seeds draw other
numbers), which reveals a program that lets it reach a real element. A partial input is split into unequal parts, which
reveals a program that reduces over the wrong axes, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ir.diagnostics import InternalError
from ir.mesh import AxisRef
from ir.sharding import ReductionKind, Sharding
from ir.types import Array, dtype_of
from lowering.reference.arrays import bits_of, combine, identity, widen
from lowering.reference.mesh_dims import DeviceGrid, DeviceGrids
from lowering.reference.poison import Poison


def distribute(x: Array, sharding: Sharding, grids: DeviceGrids, *, poison: Poison) -> Array:
    """A global array as the shards of all devices, on the default grid."""
    grid = grids.of(sharding.mesh)
    return grids.translate(
        shard(x.reshape((1,) * grid.rank + x.shape), sharding, grid, poison=poison), grid, grids.default
    )


def shard(x: Array, sharding: Sharding, grid: DeviceGrid, *, poison: Poison) -> Array:
    """The shards of a tensor that is equal on all devices along the sharding's axes. The leading dims are the
    grid's."""
    for kind, axes in _pending(sharding):
        x = _split_partial(x, kind, axes, grid)
    dims = [grid.rank + d for d in range(sharding.rank)]
    x = _pad(x, dims, [_shards(grid, a) for a in sharding.axes], poison)
    for d, axes in enumerate(sharding.axes):
        x = grid.scatter(x, axes, d)
    return x


def assemble(x: Array, sharding: Sharding, shape: Sequence[int], grids: DeviceGrids, name: str) -> Array:
    """The global array of that shape, from the shards of the devices.

    Raises InternalError if devices that should have the same shard differ in a bit of it; all NaNs count as equal.
    """
    grid = grids.of(sharding.mesh)
    x = grids.translate(x, grids.default, grid)
    return np.array(unshard(x, sharding, shape, grid, range(grid.rank), name).reshape(tuple(shape)), order="C")


def unshard(
    x: Array, sharding: Sharding, shape: Sequence[int], grid: DeviceGrid, along: Sequence[int], name: str
) -> Array:
    """The tensor of that shape, from the shards of the devices; it is equal along the grid's dims `along`.

    Raises InternalError if devices along them that should have the same shard differ in a bit of it.
    """
    for kind, axes in _pending(sharding):
        dims = grid.dims(axes)
        x = combine(kind, grid.spread(x, dims), dims, keepdims=True, from_identity=False)
    for d, axes in enumerate(sharding.axes):
        x = grid.gather(x, axes, d)
    x = x[(*(slice(None),) * grid.rank, *(slice(n) for n in shape))]
    first = x[tuple(slice(0, 1) if d in along else slice(None) for d in range(grid.rank))]
    if not same_bits(x, first):
        raise InternalError(
            f"result {name!r}: devices that hold the same shard disagree, in {_disagreeing(x, first, grid)} of its "
            "elements"
        )
    return first


def same_bits(x: Array, y: Array) -> bool:
    """Whether all elements have the same bits, or are both NaN."""
    return bool(_alike(x, y).all())


def _alike(x: Array, y: Array) -> Array:
    if x.dtype.kind == "c":
        return _alike(x.real, y.real) & _alike(x.imag, y.imag)
    equal: Array = np.asarray(bits_of(x) == bits_of(y))
    if dtype_of(x.dtype).is_float:
        equal = equal | (np.isnan(x) & np.isnan(y))
    return equal


def _disagreeing(x: Array, first: Array, grid: DeviceGrid) -> int:
    differs = ~_alike(x, first)
    return int(np.count_nonzero(differs.any(tuple(range(grid.rank)))))


def _shards(grid: DeviceGrid, axes: Sequence[AxisRef]) -> int:
    return int(np.prod([grid.sub_axes[d].size for d in grid.dims(axes)]))


def _pending(sharding: Sharding) -> list[tuple[ReductionKind, tuple[AxisRef, ...]]]:
    """The pending reduction and its axes, if there is one. All axes have the same kind."""
    axes = tuple(axis for axis, _ in sharding.partial)
    return [(sharding.partial[0][1], axes)] if axes else []


def _pad(x: Array, dims: Sequence[int], parts: Sequence[int], poison: Poison) -> Array:
    """`x` with each dim padded to a multiple of its number of parts."""
    shape = list(x.shape)
    for d, n in zip(dims, parts, strict=True):
        shape[d] = -(-shape[d] // n) * n
    if tuple(shape) == x.shape:
        return x
    padding = poison(dtype_of(x.dtype))
    result = np.resize(padding, shape)
    result[tuple(slice(n) for n in x.shape)] = x
    return result


def _split_partial(x: Array, kind: ReductionKind, axes: tuple[AxisRef, ...], grid: DeviceGrid) -> Array:
    """`x` as parts along the axes whose reduction is exactly `x`."""
    count = _shards(grid, axes)
    if count == 1:
        return x
    nothing = np.broadcast_to(identity(kind, dtype_of(x.dtype)), x.shape)
    parts = np.stack([x, *[nothing] * (count - 1)], grid.rank)
    if _integer_valued(x):
        uneven = _uneven_parts(x, kind, count, grid.rank)
        exact = _alike(*(combine(kind, p, (grid.rank,), from_identity=False) for p in (uneven, parts)))
        parts = np.where(np.expand_dims(exact, grid.rank), uneven, parts)
    return grid.scatter(parts, axes, 0).squeeze(grid.rank)


def _integer_valued(x: Array) -> bool:
    if x.dtype.kind == "c":
        return _integer_valued(x.real) and _integer_valued(x.imag)
    if not dtype_of(x.dtype).is_float:
        return True
    wide = widen(x)
    return bool((np.isfinite(wide) & (np.trunc(wide) == wide)).all())


_OF_BOOLEANS: dict[ReductionKind, ReductionKind] = {"max": "or", "min": "and", "or": "or", "and": "and"}


def _uneven_parts(x: Array, kind: ReductionKind, count: int, at: int) -> Array:
    """Parts that differ from one another without a pattern over devices or elements. Their reduction is `x` if no float
    is rounded."""
    element = np.arange(x.size).reshape((*x.shape[:at], 1, *x.shape[at:]))
    part = np.arange(count).reshape((count, *(1,) * (x.ndim - at)))
    noise = (element * 7 + part * 3 + part * part + (element % 3) * part) % 5
    whole = np.expand_dims(x, at)
    owner = element % count == part
    if kind == "sum":
        return _sum_parts(whole, noise - 2, part, at)
    if kind == "prod":
        return _product_parts(whole, noise % 2 == 0, part, at)
    if x.dtype == np.bool_:
        kind = _OF_BOOLEANS[kind]
    if kind in ("and", "or"):
        wide = widen(whole)
        mask = noise.astype(wide.dtype)
        return np.where(owner, wide, wide | mask if kind == "and" else wide & mask).astype(whole.dtype)
    return np.where(owner, whole, _beyond(whole, noise + 1, lower=kind == "max"))


def _sum_parts(whole: Array, noise: Array, part: Array, at: int) -> Array:
    wide = widen(whole)
    noise = np.where(part == 0, 0, noise).astype(wide.dtype)
    rest = wide - np.add.reduce(noise, at, wide.dtype, keepdims=True)
    return np.where(part == 0, rest, noise).astype(whole.dtype)


def _product_parts(whole: Array, negative: Array, part: Array, at: int) -> Array:
    wide = widen(whole)
    minus = np.negative(np.ones((), wide.dtype))
    signs = np.where(negative & (part > 0), minus, np.ones((), wide.dtype))
    rest = wide * np.multiply.reduce(signs, at, wide.dtype, keepdims=True)
    return np.where(part == 0, rest, signs).astype(whole.dtype)


def _beyond(whole: Array, distance: Array, *, lower: bool) -> Array:
    """A number below (above) by the distance, or the lowest (highest) number if that would wrap."""
    dtype = dtype_of(whole.dtype)
    wide = widen(whole)
    step = distance.astype(wide.dtype)
    moved: Array = wide - step if lower else wide + step
    if not dtype.is_float:
        end = np.array(dtype.lowest if lower else dtype.highest, wide.dtype)
        wrapped = (moved > wide) | (moved < end) if lower else (moved < wide) | (moved > end)
        moved = np.where(wrapped, end, moved)
    return moved.astype(whole.dtype)
