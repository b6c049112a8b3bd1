"""How random programs (`spmdc.testing`) draw loops, choices and functions of elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from ir.builder import Names, RegionBuilder
from ir.program import Function, Region, Value
from ir.types import DType, TensorType, pred, s32

if TYPE_CHECKING:
    from spmdc.testing import Writer

_COUNTER = TensorType((), s32)


def while_(w: Writer) -> None:
    """A counted loop that adds to a carried value; the body may use values from outside."""
    x = w.pick(lambda v: True)
    trips = w.draw(st.integers(0, 3))
    zero = w.b.op("constant", value=0, type=_COUNTER)
    body = RegionBuilder(w.b.names)
    i, carried = body.param("i", _COUNTER), body.param("carried", x.type)
    outside = w.pick(lambda v: v.type == x.type)
    name = "or" if x.dtype == pred else "add"
    new = body.op(name, carried, outside)
    if w.draw(st.booleans()):
        new = body.op("shard", new, sharding=w.sharding(x.type))
    one = body.op("constant", value=1, type=_COUNTER)
    regions = (_counts_to(w.b.names, trips, x.type), body.region(body.op("add", i, one), new))
    _, result = w.b.append("while", [zero, x], {"trip_count": trips}, regions=regions)
    w.keep(result, w.bounds[x] + trips * w.bounds[outside])


def _counts_to(names: Names, trips: int, carried: TensorType) -> Region:
    condition = RegionBuilder(names)
    i = condition.param("i", _COUNTER)
    condition.param("carried", carried)
    limit = condition.op("constant", value=trips, type=i.type)
    return condition.region(condition.op("compare", i, limit, direction="LT"))


def case(w: Writer) -> None:
    """A choice between some values: as they are, doubled, or placed otherwise. The index may be out of range."""
    x = w.pick(lambda v: True)
    index = w.b.op("constant", value=w.draw(st.integers(-1, 3)), type=_COUNTER)
    if w.draw(st.booleans()) and w.has(lambda v: v.type == _COUNTER):
        index = w.pick(lambda v: v.type == _COUNTER)
    regions = tuple(_branch(w, x.type) for _ in range(w.draw(st.integers(1, 3))))
    same = [v for v in w.values if v.type == x.type]
    results = w.b.append("case", [index], {}, regions=regions, types=[x.type])
    w.keep(results[0], 2 * max(w.bounds[v] for v in same))


def _branch(w: Writer, type: TensorType) -> Region:
    b = RegionBuilder(w.b.names)
    value: Value = w.pick(lambda v: v.type == type)
    if w.draw(st.booleans()):
        value = b.op("or" if type.dtype == pred else "add", value, value)
    if w.draw(st.booleans()):
        value = b.op("shard", value, sharding=w.sharding(type))
    return b.region(value)


def map_(w: Writer) -> None:
    """A function of two scalars over tensors."""
    function = w.scalars
    if function is None or not w.has(lambda v: v.dtype == function.params[0].dtype):
        return
    x = w.pick(lambda v: v.dtype == function.params[0].dtype)
    y = w.pick(lambda v: v.type == x.type)
    larger, both = w.b.append("map", [x, y], {"function": function.name}, types=[x.type, x.type])
    w.keep(larger, max(w.bounds[x], w.bounds[y]))
    w.keep(both, w.bounds[x] + w.bounds[y])


def scalar_function(dtype: DType) -> Function:
    """To be mapped: the larger of two numbers, by a case, and their sum."""
    b = RegionBuilder()
    type = TensorType((), dtype)
    x, y = b.param("x", type), b.param("y", type)
    index = b.op("convert", b.op("compare", x, y, direction="GT"), dtype=s32)
    regions = tuple(RegionBuilder(b.names).region(v) for v in (y, x))
    (larger,) = b.append("case", [index], {}, names=("larger",), regions=regions, types=[type])
    return b.function("larger_and_sum", [larger, b.op("add", x, y, name="both")])


WRITERS: tuple[Callable[[Writer], None], ...] = (while_, case, map_)
