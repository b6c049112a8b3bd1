"""How random programs (`spmdc.testing`) draw meshes, the parts of their axes, and shardings."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence

from hypothesis import strategies as st

from ir.mesh import AxisRef, Mesh, merge_axes, prime_factors
from ir.sharding import DimSharding, ReductionKind, Sharding
from ir.types import DType, TensorType, pred

Divisions = Mapping[str, tuple[AxisRef, ...]]
"""The parts, major to minor, into which shardings may cut each axis."""

DIMS = (1, 2, 3, 4, 5, 7, 8)
"""Sizes of dims: small, unequal, prime, and one that every even axis divides."""

LARGE_DIMS = (6, 12, 13, 16, 24, 32)

_AXIS_SIZES = (2, 3, 4, 1, 2, 3, 4, 5, 6, 8, 12)


@st.composite
def meshes(draw: st.DrawFn, max_axes: int = 3, max_devices: int = 64) -> Mesh:
    """Meshes of 1 to `max_axes` axes of sizes 1 to 12, some in a device order of their own."""
    sizes: list[int] = []
    for _ in range(draw(st.integers(1, max_axes))):
        room = max_devices // math.prod(sizes)
        sizes.append(draw(st.sampled_from([n for n in _AXIS_SIZES if n <= room])))
    mesh = Mesh(tuple(zip("xyzuvw", sizes, strict=False)))
    if not seldom(draw, 3):
        return mesh
    return Mesh(mesh.axes, tuple(draw(st.permutations(range(mesh.size)))))


@st.composite
def other_meshes(draw: st.DrawFn, mesh: Mesh) -> Mesh:
    """Meshes over the same devices in another order, with axes of other names and, at times, other sizes."""
    sizes = mesh.shape
    if seldom(draw, 2):
        sizes = draw(st.sampled_from([f for f in _factorizations(mesh.size) if len(f) <= 3]))
    axes = tuple((f"other_{i}", size) for i, size in enumerate(sizes))
    return Mesh(axes, tuple(draw(st.permutations(range(mesh.size)))), "other")


@st.composite
def divisions(draw: st.DrawFn, *among: Mesh) -> Divisions:
    """The parts into which the shardings of one program cut each axis of its meshes: 12 as 2 by 6, 3 by 2 by 2, or
    whole.

    Shardings that meet must have the same divisions: parts cut differently may have no common refinement.
    """
    return {axis.name: _parts(axis, draw(_division(axis.size))) for mesh in among for axis in mesh.whole_axes()}


@st.composite
def _division(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """Every second axis stays whole, because searches for reshards take longer with more parts."""
    return draw(st.sampled_from(_factorizations(size))) if size > 3 and draw(st.booleans()) else (size,)


def _factorizations(n: int) -> list[tuple[int, ...]]:
    """All ways to write n as a product of factors in order, itself first."""
    longer = ((f, *rest) for f in range(2, n) if n % f == 0 for rest in _factorizations(n // f))
    return [(n,), *longer]


def _parts(axis: AxisRef, sizes: Sequence[int]) -> tuple[AxisRef, ...]:
    ends = itertools.accumulate(sizes, operator.mul)
    return tuple(AxisRef(axis.name, end // size, size) for end, size in zip(ends, sizes, strict=True))


@st.composite
def shardings(
    draw: st.DrawFn,
    mesh: Mesh,
    type: TensorType,
    *,
    partial: bool = True,
    unclear: bool = True,
    divided: Divisions | None = None,
    without: frozenset[str] = frozenset(),
) -> Sharding:
    """Shardings of a tensor: whole axes and parts of them on any dims, open and closed dims, partial axes.

    `partial` allows pending reductions, `unclear` open dims, priorities and explicitly replicated axes. The parts of
    axes are those of `divided`; if it is not given, those of prime size, smaller ones major. None is of an axis named
    in `without`.
    """
    whole = [a for a in mesh.whole_axes() if a.size > 1 and a.name not in without]
    parts = [p for a in whole for p in (divided[a.name] if divided else _parts(a, prime_factors(a.size)))]
    free = list(dict.fromkeys((*whole, *parts)))

    def some() -> Iterator[AxisRef]:
        while free:
            axis = draw(st.sampled_from([None, *free]))
            if axis is None:
                return
            free[:] = [a for a in free if not a.overlaps(axis)]
            yield axis

    pending = list(some()) if partial and seldom(draw, 3) else []
    kept = list(some()) if unclear and seldom(draw, 5) else []
    dims = [_dim(draw, merge_axes(list(some())), unclear) for _ in range(type.rank)]
    kind: ReductionKind = draw(st.sampled_from(partial_kinds(type.dtype))) if pending else "sum"
    return Sharding(mesh, tuple(dims), tuple((a, kind) for a in pending), tuple(kept))


def _dim(draw: st.DrawFn, axes: tuple[AxisRef, ...], unclear: bool) -> DimSharding:
    is_open = unclear and seldom(draw, 3)
    return DimSharding(axes, is_open, 1 if unclear and axes and seldom(draw, 7) else 0)


def seldom(draw: st.DrawFn, others: int) -> bool:
    """True once for every `others` times that it is False."""
    return draw(st.integers(0, others)) == others


def partial_kinds(dtype: DType) -> tuple[ReductionKind, ...]:
    """The reductions that can be pending for a tensor of that element type, exactly for small integers."""
    if dtype == pred:
        return ("or", "and")
    if dtype.is_complex:
        return ("sum",)
    return ("sum", "max", "min") if dtype.is_float else ("sum", "max", "min", "and", "or")
