"""How random programs (`spmdc.testing`) draw the ops that read and write at computed indices, and those that sort."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import strategies as st

from ir.program import Value
from ir.types import TensorType, pred, s8, s32, u8, u32
from spmdc.verification.random_programs.writer import COUNTER, Write, Writer, any_value

_MOST_INDICES = 8

_INDICES = (s32, s32, s8, u8, u32)


def _start(w: Writer, n: int) -> Value:
    """The start of a box in a dim of size n, possibly out of range: a constant, one that is computed so that it is not
    known, or data."""
    start, way = w.draw(st.integers(-n, 2 * n)), w.draw(st.sampled_from(("known", "computed", "data")))
    if way == "data" and w.has(lambda v: v.type == COUNTER):
        return w.pick(lambda v: v.type == COUNTER)
    if way == "known":
        return w.b.op("constant", value=start, type=COUNTER)
    return w.b.op("negate", w.b.op("constant", value=-start, type=COUNTER))


def dynamic_slice(w: Writer) -> None:
    x = w.pick(any_value, filled=True)
    starts = [_start(w, n) for n in x.shape]
    sizes = tuple(w.draw(st.integers(1, n)) for n in x.shape)
    w.keep(w.b.op("dynamic_slice", x, *starts, sizes=sizes), w.bounds[x])


def dynamic_update_slice(w: Writer) -> None:
    x = w.pick(any_value, filled=True)
    source = w.pick(lambda v: v.type == x.type)
    sizes = tuple(w.draw(st.sampled_from([1, n, (n + 1) // 2])) for n in x.shape)
    update = w.b.op("slice", source, start=(0,) * x.type.rank, limit=sizes)
    starts = [_start(w, n) for n in x.shape]
    result = w.b.op("dynamic_update_slice", x, update, *starts)
    w.keep(result, max(w.bounds[x], w.bounds[source]))


@dataclass(frozen=True)
class _Addresses:
    """Index vectors, some of them out of range; the dims that they address; and the dims that operand and indices
    share, with the index dim of each. `boxes` is the size of a box in each dim; slices lack the `dropped` ones."""

    indices: Value
    vector_dim: int
    addressed: tuple[int, ...]
    shared: tuple[int, ...]
    walked: tuple[int, ...]
    boxes: tuple[int, ...]
    dropped: tuple[int, ...]

    @property
    def scanned(self) -> tuple[int, ...]:
        return tuple(n for d, n in enumerate(self.indices.shape) if d != self.vector_dim)

    @property
    def kept(self) -> tuple[int, ...]:
        """The sizes of the box dims that slices have."""
        return tuple(n for d, n in enumerate(self.boxes) if d not in (*self.dropped, *self.shared))


def _addresses(w: Writer, x: Value) -> _Addresses:
    order = w.draw(st.permutations(range(x.type.rank)))
    count = w.draw(st.integers(1, min(2, x.type.rank)))
    addressed, others = tuple(order[:count]), sorted(order[count:])
    shared = tuple(d for d in others if w.draw(st.integers(0, 2)) == 0)
    scanned = [(n, -1) for n in w.draw(st.lists(st.sampled_from((1, 3, 4, _MOST_INDICES)), max_size=2))]
    dims = w.draw(st.permutations([*scanned, *((x.shape[d], d) for d in shared)]))
    vector = w.draw(st.integers(0, len(dims))) if w.draw(st.booleans()) else len(dims)
    sizes = [n for n, _ in dims]
    implicit = len(addressed) == 1 and vector == len(dims) and w.draw(st.booleans())
    shape = tuple(sizes) if implicit else (*sizes[:vector], len(addressed), *sizes[vector:])
    places = {d: i + (i >= vector) for i, (_, d) in enumerate(dims)}
    walked = tuple(places[d] for d in shared)
    dropped = tuple(d for d in sorted(addressed) if w.draw(st.booleans()))
    boxes = tuple(
        1 if d in dropped or d in shared else w.draw(st.integers(1, n)) if d in addressed else n
        for d, n in enumerate(x.shape)
    )
    return _Addresses(_index_vectors(w, shape), vector, addressed, shared, walked, boxes, dropped)


def _index_vectors(w: Writer, shape: tuple[int, ...]) -> Value:
    type = TensorType(shape, w.draw(st.sampled_from(_INDICES)))
    indices = w.b.op("constant", value=w.draw(st.integers(-4 if type.dtype.lowest < 0 else 0, 6)), type=type)
    for d in range(type.rank):
        indices = w.b.op("add", indices, w.b.op("iota", type=type, dim=d))
    return w.b.op("shard", indices, sharding=w.sharding(type))


def gather(w: Writer) -> None:
    x = w.pick(lambda v: v.type.rank > 0, filled=True)
    a = _addresses(w, x)
    rank = len(a.scanned) + len(a.kept)
    fill = w.draw(st.sampled_from((None, None, True if x.dtype == pred else 2)))
    result = w.b.op(
        "gather",
        x,
        a.indices,
        offset_dims=tuple(sorted(w.draw(st.permutations(range(rank)))[: len(a.kept)])),
        collapsed_slice_dims=a.dropped,
        operand_batching_dims=a.shared,
        indices_batching_dims=a.walked,
        start_index_map=a.addressed,
        index_vector_dim=a.vector_dim,
        slice_sizes=a.boxes,
        mode="clip" if fill is None else "fill",
        fill_value=fill,
    )
    w.keep(result, max(w.bounds[x], fill or 0))


def scatter(w: Writer) -> None:
    x = w.pick(lambda v: v.type.rank > 0 and v.dtype.is_ordered and v.dtype != pred, filled=True)
    a = _addresses(w, x)
    rank = len(a.scanned) + len(a.kept)
    window = tuple(sorted(w.draw(st.permutations(range(rank)))[: len(a.kept)]))
    sizes, walks = iter(a.kept), iter(a.scanned)
    updates = w.b.op(
        "constant",
        value=2.0 if x.dtype.is_float else 2,
        type=x.type.with_shape(tuple(next(sizes) if d in window else next(walks) for d in range(rank))),
    )
    if rank:
        updates = w.b.op("add", updates, w.b.op("iota", type=updates.type, dim=0))
    result = w.b.op(
        "scatter",
        x,
        a.indices,
        w.b.op("shard", updates, sharding=w.sharding(updates.type)),
        update_window_dims=window,
        inserted_window_dims=a.dropped,
        input_batching_dims=a.shared,
        scatter_indices_batching_dims=a.walked,
        scatter_dims_to_operand_dims=a.addressed,
        index_vector_dim=a.vector_dim,
        kind=w.draw(st.sampled_from(_scatters(w, x))),
    )
    w.keep(result, w.bounds[x] + (max(updates.shape, default=0) + 2) * math.prod(a.scanned))


def _scatters(w: Writer, x: Value) -> tuple[str, ...]:
    of_integers = ("prod",) if x.dtype.is_integer else ()
    return ("replace", "max", "min", *(("sum",) * 3 if w.adds(x) else ()), *of_integers)


def sort(w: Writer) -> None:
    """Sorts by the values and then by others or, last, by their positions, so that no two keys are equal."""
    x = w.pick(lambda v: v.type.rank > 0 and v.dtype.is_ordered)
    dim = w.draw(st.integers(0, x.type.rank - 1))
    operands = [x, w.b.op("iota", type=x.type.with_dtype(s32), dim=dim)]
    if w.draw(st.booleans()):
        operands.insert(1, w.pick(lambda v: v.shape == x.shape and v.dtype.is_ordered))
    keys, descending = w.draw(st.integers(1, len(operands))), w.draw(st.booleans())
    stable = keys < len(operands) or w.draw(st.booleans())
    first = w.draw(st.none() | st.integers(1, x.shape[dim])) if x.shape[dim] else None
    found = w.b.multi("sort", *operands, dim=dim, num_keys=keys, descending=descending, stable=stable, first=first)
    for before, after in zip(operands, found, strict=True):
        w.keep(after, w.bounds.get(before, x.shape[dim]))


def top_k(w: Writer) -> None:
    x = w.pick(lambda v: v.type.rank > 0 and v.dtype.is_ordered, filled=True)
    values, indices = w.b.multi("top_k", x, k=w.draw(st.integers(1, x.shape[-1])))
    w.keep(values, w.bounds[x])
    w.keep(indices, x.shape[-1])


WRITERS: tuple[Write, ...] = (dynamic_slice, dynamic_update_slice, gather, scatter)
SORTING: tuple[Write, ...] = (sort, top_k)
