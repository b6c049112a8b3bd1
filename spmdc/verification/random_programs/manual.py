"""How random programs (`spmdc.testing`) draw manual regions with any ops, which communicate and nest.

A region's axes divide the dims that they split, so that results on a shard do not depend on padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from ir.builder import RegionBuilder
from ir.manual import inner_type
from ir.mesh import AxisRef
from ir.program import DeviceOrder, Value
from ir.sharding import DimSharding, Sharding
from ir.types import TensorType, pred, s32
from spmdc.verification.random_programs import control, creation, elementwise, indexing, layout, reduction, window
from spmdc.verification.random_programs.writer import NothingFitsError, Write, Writer, any_value

_MOST_STEPS = 4


def region(w: Writer) -> None:
    """A region along one or two of the free axes."""
    around = w.choices.manual
    free = [a for a in w.choices.meshes[0].whole_axes() if a.size > 1 and a.name not in around]
    if not free:
        raise NothingFitsError
    axes = tuple(w.draw(st.permutations(free))[: w.draw(st.integers(1, 2))])
    manual = frozenset(a.name for a in axes)
    body = RegionBuilder(w.b.names)
    choices = replace(w.choices, manual=around | manual, ops=_WITHIN)
    inner = Writer(w.draw, choices, b=body, depth=w.depth + 1)
    operands = [w.pick(any_value) for _ in range(w.draw(st.integers(1, 2)))]
    for x in operands:
        split = _split(w, x.type, axes)
        inner.keep(body.param("shard", inner_type(x.type, split, manual), split, of=x.type), w.bounds[x])
    inner.write(_MOST_STEPS)
    returned = inner.pick(any_value)
    placed, type, returned = _returned(inner, returned, axes)
    regions = (body.region(returned),)
    (result,) = w.b.append("manual", operands, {"axes": axes}, shardings=[placed], regions=regions, types=[type])
    w.keep(result, inner.bounds[returned])


def _split(w: Writer, type: TensorType, axes: Sequence[AxisRef]) -> Sharding:
    """A sharding in which each axis splits some dim that it divides, or none."""
    dims: list[list[AxisRef]] = [[] for _ in type.shape]
    for axis in axes:
        fitting = [d for d, n in enumerate(type.shape) if n % (axis.size * math.prod(a.size for a in dims[d])) == 0]
        d = w.draw(st.sampled_from([*fitting, None]))
        if d is not None:
            dims[d].append(axis)
    return Sharding(w.choices.meshes[0], tuple(DimSharding(tuple(d), True) for d in dims))


def _returned(w: Writer, x: Value, axes: tuple[AxisRef, ...]) -> tuple[Sharding, TensorType, Value]:
    """The sharding and type of a returned shard: parts of a dim, or the maximum over the devices if it has no dim, or
    at random."""
    mesh = w.choices.meshes[0]
    if x.type.rank and (not x.dtype.is_ordered or w.draw(st.booleans())):
        dim = w.draw(st.integers(0, x.type.rank - 1))
        dims = tuple(DimSharding(axes if d == dim else (), True) for d in range(x.type.rank))
        count = math.prod(a.size for a in axes)
        shape = tuple(n * count if d == dim else n for d, n in enumerate(x.shape))
        return Sharding(mesh, dims), x.type.with_shape(shape), x
    if not x.dtype.is_ordered:
        raise NothingFitsError
    greatest = w.b.op("all_reduce", x, axes=axes, kind="or" if x.dtype == pred else "max")
    w.bounds[greatest] = w.bounds[x]
    return Sharding.unknown(mesh, x.type.rank), x.type, greatest


# What only regions have.


def _along(w: Writer) -> tuple[AxisRef, ...]:
    """Some of the manual axes, or parts of them, in any order."""
    whole = [a for a in w.choices.meshes[0].whole_axes() if a.name in w.choices.manual and a.size > 1]
    axes = w.draw(st.permutations(whole))[: w.draw(st.integers(1, len(whole)))]
    return tuple(w.draw(st.sampled_from((a, *w.choices.divided[a.name]))) for a in axes)


def axis_index(w: Writer) -> None:
    axes = _along(w)
    w.keep(w.b.op("axis_index", axes=axes), math.prod(a.size for a in axes))


def all_reduce(w: Writer) -> None:
    x, axes = w.pick(lambda v: v.dtype.is_ordered or w.adds(v)), _along(w)
    kind = w.draw(st.sampled_from(_kinds(w, x)))
    w.keep(w.b.op("all_reduce", x, axes=axes, kind=kind), w.bounds[x] * math.prod(a.size for a in axes))


def _kinds(w: Writer, x: Value) -> list[str]:
    if x.dtype == pred:
        return ["or", "and"]
    kinds = ["max", "min"] if x.dtype.is_ordered else []
    kinds += ["and", "or"] if x.dtype.is_integer else []
    return kinds + (["sum"] if w.adds(x) and x.dtype.has_zero else [])


def all_gather(w: Writer) -> None:
    x = w.pick(lambda v: v.type.rank > 0)
    w.keep(w.b.op("all_gather", x, axes=_along(w), dim=w.draw(st.integers(0, x.type.rank - 1))), w.bounds[x])


def _dim_in_parts(w: Writer, x: Value, axes: Sequence[AxisRef]) -> int:
    """A dim that these axes divide."""
    count = math.prod(a.size for a in axes)
    fitting = [d for d, n in enumerate(x.shape) if n % count == 0]
    if not fitting:
        raise NothingFitsError
    return w.draw(st.sampled_from(fitting))


def reduce_scatter(w: Writer) -> None:
    x, axes = w.pick(lambda v: v.type.rank > 0 and (v.dtype.is_ordered or w.adds(v))), _along(w)
    dim, kind = _dim_in_parts(w, x, axes), w.draw(st.sampled_from(_kinds(w, x)))
    bound = w.bounds[x] * math.prod(a.size for a in axes)
    w.keep(w.b.op("reduce_scatter", x, axes=axes, dim=dim, kind=kind), bound)


def all_to_all(w: Writer) -> None:
    x, axes = w.pick(lambda v: v.type.rank > 0), _along(w)
    split, concat = _dim_in_parts(w, x, axes), w.draw(st.integers(0, x.type.rank - 1))
    w.keep(w.b.op("all_to_all", x, axes=axes, split=split, concat=concat), w.bounds[x])


def permute(w: Writer) -> None:
    """Receives from the devices some positions on, or from those at the same position in another order."""
    x, axes = w.pick(any_value), _along(w)
    target, source = (DeviceOrder(w.choices.meshes[0], tuple(a)) for a in (axes, w.draw(st.permutations(axes))))
    moved = w.b.op("collective_permute", x, target=target, source=source, shift=w.draw(st.integers(-1, 2)))
    w.keep(moved, w.bounds[x])


def axis_index_matters(w: Writer) -> None:
    """Numbers that differ between the devices."""
    x = w.pick(lambda v: v.dtype == s32)
    place = w.b.op("axis_index", axes=_along(w))
    wide = w.b.op("broadcast_in_dim", place, shape=x.shape, dims=())
    w.keep(w.b.op("maximum", x, wide), max(w.bounds[x], w.choices.meshes[0].size))


_COMMUNICATES: tuple[Write, ...] = (
    axis_index, all_reduce, all_gather, reduce_scatter, all_to_all, permute, axis_index_matters,
)  # fmt: skip
_COMPUTES: tuple[Write, ...] = (
    *elementwise.WRITERS, *layout.WRITERS, *reduction.WRITERS, *creation.WRITERS,
    *indexing.WRITERS, *window.WRITERS, control.while_,
)  # fmt: skip
_WITHIN = (*_COMPUTES, *_COMMUNICATES * (len(_COMPUTES) // len(_COMMUNICATES)), region)

WRITERS: tuple[Write, ...] = (region, region)
