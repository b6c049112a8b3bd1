"""How random programs (`spmdc.testing`) draw products, reductions and scans."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from ir.types import pred, s32
from spmdc.verification.random_programs.writer import NothingFitsError, Write, Writer, any_value, growth


def dot_general(w: Writer) -> None:
    x = w.pick(lambda v: v.dtype != pred and w.adds(v))
    y = w.pick(lambda v: v.dtype == x.dtype)
    batch: list[tuple[int, int]] = []
    contract: list[tuple[int, int]] = []
    free = list(range(y.type.rank))
    for i, n in enumerate(x.shape):
        match = next((j for j in free if y.shape[j] == n), None)
        role = w.draw(st.sampled_from(["contract", "free", "batch"]))
        if match is None or role == "free":
            continue
        free.remove(match)
        (batch if role == "batch" else contract).append((i, match))
    if x.type.rank + len(free) - len(contract) > 4:
        return
    depth = math.prod(x.shape[i] for i, _ in contract)
    sums = [t for t in w.choices.dtypes if t.kind == x.dtype.kind and t.has_zero and t.bits > x.dtype.bits]
    result = w.b.op(
        "dot_general",
        x,
        y,
        lhs_batch=tuple(i for i, _ in batch),
        rhs_batch=tuple(j for _, j in batch),
        lhs_contract=tuple(i for i, _ in contract),
        rhs_contract=tuple(j for _, j in contract),
        dtype=w.draw(st.sampled_from([None, *sums])),
    )
    w.keep(result, growth(x.dtype) * w.bounds[x] * w.bounds[y] * depth)


def reduce(w: Writer) -> None:
    x = w.pick(lambda v: v.dtype.is_ordered or w.adds(v))
    dims = tuple(d for d in range(x.type.rank) if w.draw(st.booleans()))
    kinds = ["max", "min"] if x.dtype.is_ordered and x.type.size else []
    kinds += ["and", "or"] if x.dtype.is_integer or x.dtype == pred else []
    kinds += ["sum"] if x.dtype != pred and w.adds(x) else []
    kinds += ["prod"] if x.dtype.is_integer else []
    if not kinds:
        raise NothingFitsError
    kind = w.draw(st.sampled_from(kinds))
    bound = w.bounds[x] * math.prod(x.shape[d] for d in dims)
    w.keep(w.b.op("reduce", x, dims=dims, kind=kind), bound if kind == "sum" else w.bounds[x])


def argmax(w: Writer) -> None:
    x = w.pick(lambda v: v.type.rank > 0 and v.dtype.is_ordered, filled=True)
    dim = w.draw(st.integers(0, x.type.rank - 1))
    index = w.b.op("iota", type=x.type.with_dtype(s32), dim=dim)
    kind = w.draw(st.sampled_from(["argmax", "argmin"]))
    best, where = w.b.multi("reduce", x, index, dims=(dim,), kind=kind)
    w.keep(best, w.bounds[x])
    w.keep(where, x.shape[dim])


def cumsum(w: Writer) -> None:
    x = w.pick(lambda v: any_value(v) and v.type.rank > 0 and v.dtype != pred and w.adds(v))
    dim = w.draw(st.integers(0, x.type.rank - 1))
    w.keep(w.b.op("cumsum", x, dim=dim, reverse=w.draw(st.booleans())), w.bounds[x] * x.shape[dim])


def running_extreme(w: Writer) -> None:
    """cummax, cummin, and of integers, whose products wrap alike in any order, cumprod."""
    x = w.pick(lambda v: v.type.rank > 0 and v.dtype.is_ordered)
    names = ["cummax", "cummin", *(["cumprod"] if x.dtype.is_integer else [])]
    name, dim = w.draw(st.sampled_from(names)), w.draw(st.integers(0, x.type.rank - 1))
    w.keep(w.b.op(name, x, dim=dim, reverse=w.draw(st.booleans())), w.bounds[x])


WRITERS: tuple[Write, ...] = (dot_general, dot_general, reduce, reduce, argmax, cumsum, running_extreme)
