"""How random programs (`spmdc.testing`) draw loops and choices whose regions hold any ops, other loops among them.

A loop may read or write the row of its iteration's number. Its condition may depend on carried values, for which
devices communicate to agree on whether they continue.
"""

from __future__ import annotations

from hypothesis import strategies as st

from ir.builder import RegionBuilder
from ir.program import Attr, Region, Value
from ir.types import TensorType, pred, s32
from spmdc.verification.random_programs.writer import COUNTER, NothingFitsError, Write, Writer, any_value

_DEEPEST = 2
_MOST_STEPS = 3
"""The most steps of a region."""
_SETTLED = 2
"""The largest magnitude of a number after the op that keeps loops from making ever larger ones."""


def loop(w: Writer) -> None:
    if w.depth == _DEEPEST:
        raise NothingFitsError
    trips = w.draw(st.integers(0, 3))
    count = w.draw(st.integers(1, 2))
    first = [w.pick(any_value) for _ in range(count)]
    body = RegionBuilder(w.b.names)
    inner, i, carried = _region(w, body, first, trips)
    _rows(inner, i, carried)
    inner.write(_MOST_STEPS)
    after = [_next(inner, c) for c in carried]
    one = body.op("constant", value=1, type=COUNTER)
    turn = body.region(body.op("add", i, one), *after)
    condition, is_counted = _condition(w, first, trips)
    zero = w.b.op("constant", value=0, type=COUNTER)
    is_declared = is_counted and w.draw(st.booleans())
    attrs: dict[str, Attr] = {"trip_count": trips if is_declared else None}
    turns, *results = w.b.append("while", [zero, *first], attrs, regions=(condition, turn))
    w.keep(turns, trips)
    for result, c in zip(results, carried, strict=True):
        w.keep(result, inner.bounds[c])


def _region(w: Writer, b: RegionBuilder, first: list[Value], trips: int) -> tuple[Writer, Value, list[Value]]:
    """A writer for a region of a loop with such carried values, the number of the iteration, and the carried values."""
    inner = w.within(b)
    i = b.param("i", COUNTER)
    inner.keep(i, trips)
    carried = [b.param("carried", x.type) for x in first]
    for c, x in zip(carried, first, strict=True):
        inner.values.append(c)
        inner.bounds[c] = max(w.bounds[x], _SETTLED)
    return inner, i, carried


def _rows(w: Writer, i: Value, carried: list[Value]) -> None:
    """For two values of one type, the row of this iteration in one of them, and the other with that row written into
    it."""
    x = w.pick(lambda v: v.type.rank > 0, filled=True)
    dim = w.draw(st.integers(0, x.type.rank - 1))
    if w.draw(st.booleans()):
        return
    first = w.b.op("constant", value=0, type=COUNTER)
    starts = [i if d == dim else first for d in range(x.type.rank)]
    sizes = tuple(1 if d == dim else n for d, n in enumerate(x.shape))
    row = w.b.op("dynamic_slice", x, *starts, sizes=sizes)
    w.keep(row, w.bounds[x])
    of = [c for c in carried if c.type == x.type]
    if len(of) > 0 and w.draw(st.booleans()):
        target = w.draw(st.sampled_from(of))
        w.keep(w.b.op("dynamic_update_slice", target, row, *starts), max(w.bounds[x], w.bounds[target]))


def _next(w: Writer, carried: Value) -> Value:
    """The value for the next iteration: one of that type, made small again if it might have grown."""
    found = w.pick(lambda v: v.type == carried.type)
    if w.bounds[found] <= w.bounds[carried]:
        return found
    if not found.dtype.is_ordered or found.dtype == pred:
        return carried
    low, high = (w.constant(n, TensorType((), found.dtype)) for n in (1, _SETTLED))
    return w.b.op("clamp", low, found, high)


def _condition(w: Writer, first: list[Value], trips: int) -> tuple[Region, bool]:
    """Whether there were fewer iterations than that and, at times, a carried number is small or large; and whether the
    condition depends on the iterations only."""
    b = RegionBuilder(w.b.names)
    inner, i, carried = _region(w, b, first, trips)
    go = b.op("compare", i, b.op("constant", value=trips, type=COUNTER), direction="LT")
    asked = [c for c in carried if c.dtype.is_ordered]
    if not asked or w.draw(st.booleans()):
        return b.region(go), True
    x = w.draw(st.sampled_from(asked))
    kind = w.draw(st.sampled_from(["or", "and"] if x.dtype == pred else ["max", "min"]))
    if w.draw(st.booleans()):
        x = b.op("shard", x, sharding=inner.sharding(x.type))
    found = b.op("reduce", x, dims=tuple(range(x.type.rank)), kind=kind)
    if x.dtype != pred:
        direction = w.draw(st.sampled_from(["LE", "GE", "NE"]))
        found = b.op("compare", found, inner.constant(w.draw(st.integers(1, 2)), found.type), direction=direction)
    return b.region(b.op("and", go, found)), False


def choice(w: Writer) -> None:
    """The results of one of several regions with any ops, possibly chosen by data."""
    if w.depth == _DEEPEST:
        raise NothingFitsError
    x = w.pick(any_value)
    index = w.pick(lambda v: v.type in (COUNTER, TensorType((), pred)))
    regions: list[Region] = []
    bounds: list[int] = []
    for _ in range(w.draw(st.integers(2, 3))):
        inner = w.within(RegionBuilder(w.b.names))
        inner.write(_MOST_STEPS)
        returned = inner.pick(lambda v: v.type == x.type)
        regions.append(inner.b.region(returned))
        bounds.append(inner.bounds[returned])
    if index.dtype == pred:
        index = w.b.op("convert", index, dtype=s32)
    (result,) = w.b.append("case", [index], {}, regions=tuple(regions), types=[x.type])
    w.keep(result, max(bounds))


WRITERS: tuple[Write, ...] = (loop, loop, choice)
