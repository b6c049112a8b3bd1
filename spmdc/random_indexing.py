"""How random programs (`spmdc.testing`) draw the ops that read and write at computed indices, and those that sort."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from ir.program import Value
from ir.types import TensorType, pred, s32
from spmdc.random_writer import Write, Writer, any_value

_MOST_INDICES = 8


def _start(w: Writer, n: int) -> Value:
    """Where a box may begin in a dim of size n, or beside it: a constant, or computed so that it is not known."""
    start = w.draw(st.integers(-n, 2 * n))
    if w.draw(st.booleans()):
        return w.b.op("constant", value=start, type=TensorType((), s32))
    return w.b.op("negate", w.b.op("constant", value=-start, type=TensorType((), s32)))


def dynamic_slice(w: Writer) -> None:
    x = w.pick(any_value)
    starts = [_start(w, n) for n in x.shape]
    sizes = tuple(w.draw(st.integers(1, n)) for n in x.shape)
    w.keep(w.b.op("dynamic_slice", x, *starts, sizes=sizes), w.bounds[x])


def dynamic_update_slice(w: Writer) -> None:
    x = w.pick(any_value)
    source = w.pick(lambda v: v.type == x.type)
    sizes = tuple(w.draw(st.sampled_from([1, n, (n + 1) // 2])) for n in x.shape)
    update = w.b.op("slice", source, start=(0,) * x.type.rank, limit=sizes)
    starts = [_start(w, n) for n in x.shape]
    result = w.b.op("dynamic_update_slice", x, update, *starts)
    w.keep(result, max(w.bounds[x], w.bounds[source]))


def _index_vectors(w: Writer, x: Value) -> tuple[Value, tuple[int, ...]]:
    """Indices of one or two dims of `x`, some of them out of range, along the last dim; and those dims."""
    addressed = tuple(w.draw(st.permutations(range(x.type.rank)))[: w.draw(st.integers(1, min(2, x.type.rank)))])
    scanned = w.draw(st.lists(st.sampled_from((1, 3, 4, _MOST_INDICES)), max_size=2))
    vectors = TensorType((*scanned, len(addressed)), s32)
    indices = w.b.op("constant", value=w.draw(st.integers(-4, 6)), type=vectors)
    for d in range(vectors.rank):
        indices = w.b.op("add", indices, w.b.op("iota", type=vectors, dim=d))
    return w.b.op("shard", indices, sharding=w.sharding(vectors)), addressed


def gather(w: Writer) -> None:
    x = w.pick(lambda v: v.type.rank > 0)
    indices, addressed = _index_vectors(w, x)
    dropped = tuple(d for d in sorted(addressed) if w.draw(st.booleans()))
    sizes = tuple(
        1 if d in dropped else w.draw(st.integers(1, n)) if d in addressed else n for d, n in enumerate(x.shape)
    )
    kept = x.type.rank - len(dropped)
    fill = w.draw(st.sampled_from((None, None, True if x.dtype == pred else 2)))
    result = w.b.op(
        "gather",
        x,
        indices,
        offset_dims=tuple(sorted(w.draw(st.permutations(range(indices.type.rank - 1 + kept)))[:kept])),
        collapsed_slice_dims=dropped,
        start_index_map=addressed,
        index_vector_dim=indices.type.rank - 1,
        slice_sizes=sizes,
        mode="clip" if fill is None else "fill",
        fill_value=fill,
    )
    w.keep(result, max(w.bounds[x], fill or 0))


def scatter(w: Writer) -> None:
    x = w.pick(lambda v: v.type.rank > 0 and v.dtype.is_ordered and v.dtype != pred)
    indices, addressed = _index_vectors(w, x)
    dropped = tuple(d for d in sorted(addressed) if w.draw(st.booleans()))
    box = tuple(w.draw(st.integers(1, n)) if d in addressed else n for d, n in enumerate(x.shape))
    scanned, kept = indices.shape[:-1], tuple(n for d, n in enumerate(box) if d not in dropped)
    updates = w.b.op("constant", value=2.0 if x.dtype.is_float else 2, type=x.type.with_shape((*scanned, *kept)))
    if updates.type.rank:
        updates = w.b.op("add", updates, w.b.op("iota", type=updates.type, dim=0))
    result = w.b.op(
        "scatter",
        x,
        indices,
        w.b.op("shard", updates, sharding=w.sharding(updates.type)),
        update_window_dims=tuple(range(len(scanned), len(scanned) + len(kept))),
        inserted_window_dims=dropped,
        scatter_dims_to_operand_dims=addressed,
        index_vector_dim=len(scanned),
        kind=w.draw(st.sampled_from(("replace", "max", "min", *(("sum",) * 3 if w.adds(x) else ())))),
    )
    w.keep(result, w.bounds[x] + (_MOST_INDICES + 2) * math.prod(scanned))


def sort(w: Writer) -> None:
    x = w.pick(lambda v: v.type.rank > 0 and v.dtype.is_ordered)
    dim = w.draw(st.integers(0, x.type.rank - 1))
    index = w.b.op("iota", type=x.type.with_dtype(s32), dim=dim)
    keys, descending = w.draw(st.integers(1, 2)), w.draw(st.booleans())
    first = w.draw(st.none() | st.integers(1, x.shape[dim]))
    found = w.b.multi("sort", x, index, dim=dim, num_keys=keys, descending=descending, first=first)
    w.keep(found[0], w.bounds[x])
    w.keep(found[1], x.shape[dim])


def top_k(w: Writer) -> None:
    x = w.pick(lambda v: v.type.rank > 0 and v.dtype.is_ordered)
    values, indices = w.b.multi("top_k", x, k=w.draw(st.integers(1, x.shape[-1])))
    w.keep(values, w.bounds[x])
    w.keep(indices, x.shape[-1])


WRITERS: tuple[Write, ...] = (dynamic_slice, dynamic_update_slice, gather, scatter)
SORTING: tuple[Write, ...] = (sort, top_k)
