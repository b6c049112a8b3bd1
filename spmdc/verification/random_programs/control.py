"""How random programs (`spmdc.testing`) draw loops, choices, functions of elements and functions of the host."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from ir.builder import Names, RegionBuilder
from ir.host import HostFunction, register_callback
from ir.manual import inner_type
from ir.ops.host import TOKEN
from ir.program import Function, Region, Value
from ir.sharding import DimSharding, Sharding
from ir.types import DType, TensorType, pred, s32
from spmdc.verification.random_programs.writer import COUNTER, INPUT_BOUND, Write, Writer, any_value


def while_(w: Writer) -> None:
    """A counted loop that adds to a carried value; the body may use values from outside."""
    x = w.pick(w.adds)
    trips = w.draw(st.integers(0, 3))
    zero = w.b.op("constant", value=0, type=COUNTER)
    body = RegionBuilder(w.b.names)
    i, carried = body.param("i", COUNTER), body.param("carried", x.type)
    outside = w.pick(lambda v: v.type == x.type)
    name = "or" if x.dtype == pred else "add"
    new = body.op(name, carried, outside)
    if w.draw(st.booleans()):
        new = body.op("shard", new, sharding=w.sharding(x.type))
    one = body.op("constant", value=1, type=COUNTER)
    regions = (_counts_to(w.b.names, trips, x.type), body.region(body.op("add", i, one), new))
    _, result = w.b.append("while", [zero, x], {"trip_count": trips}, regions=regions)
    w.keep(result, w.bounds[x] + trips * w.bounds[outside])


def _counts_to(names: Names, trips: int, carried: TensorType) -> Region:
    condition = RegionBuilder(names)
    i = condition.param("i", COUNTER)
    condition.param("carried", carried)
    limit = condition.op("constant", value=trips, type=i.type)
    return condition.region(condition.op("compare", i, limit, direction="LT"))


def case(w: Writer) -> None:
    """A choice between some values: unchanged, doubled, or resharded. The index may be out of range."""
    x = w.pick(any_value)
    index = w.b.op("constant", value=w.draw(st.integers(-1, 3)), type=COUNTER)
    if w.draw(st.booleans()) and w.has(lambda v: v.type == COUNTER):
        index = w.pick(lambda v: v.type == COUNTER)
    regions = tuple(_branch(w, x.type) for _ in range(w.draw(st.integers(1, 3))))
    same = [v for v in w.values if v.type == x.type]
    results = w.b.append("case", [index], {}, regions=regions, types=[x.type])
    w.keep(results[0], 2 * max(w.bounds[v] for v in same))


def _branch(w: Writer, type: TensorType) -> Region:
    b = RegionBuilder(w.b.names)
    value: Value = w.pick(lambda v: v.type == type)
    if w.adds(value) and w.draw(st.booleans()):
        value = b.op("or" if type.dtype == pred else "add", value, value)
    if w.draw(st.booleans()):
        value = b.op("shard", value, sharding=w.sharding(type))
    return b.region(value)


def checkpoint(w: Writer) -> None:
    """A value, unchanged, doubled, or resharded, in a checkpoint."""
    x = w.pick(any_value)
    (result,) = w.b.append("checkpoint", [], {}, regions=(_branch(w, x.type),), types=[x.type])
    w.keep(result, 2 * max(w.bounds[v] for v in w.values if v.type == x.type))


def map_(w: Writer) -> None:
    """A function of two scalars over tensors."""
    function = w.scalars
    if function is None:
        return
    x = w.pick(lambda v: v.dtype == function.params[0].dtype)
    y = w.pick(lambda v: v.type == x.type)
    larger, both = w.b.append("map", [x, y], {"function": function.name}, types=[x.type, x.type])
    w.keep(larger, max(w.bounds[x], w.bounds[y]))
    w.keep(both, w.bounds[x] + w.bounds[y])


def scalar_function(dtype: DType) -> Function:
    """A function to be mapped: the larger of two numbers, by a case, and their sum."""
    b = RegionBuilder()
    type = TensorType((), dtype)
    x, y = b.param("x", type), b.param("y", type)
    index = b.op("convert", b.op("compare", x, y, direction="GT"), dtype=s32)
    regions = tuple(RegionBuilder(b.names).region(v) for v in (y, x))
    (larger,) = b.append("case", [index], {}, names=("larger",), regions=regions, types=[type])
    return b.function("larger_and_sum", [larger, b.op("add", x, y, name="both")])


def call(w: Writer) -> None:
    helper = w.helper
    if helper is None:
        return
    operands = [_argument(w, p.type) for p in helper.function.params]
    types = [r.type for r in helper.function.results]
    results = w.b.append("call", operands, {"function": helper.function.name}, types=types)
    for value, bound in zip(results, helper.bounds, strict=True):
        w.keep(value, bound)


def _argument(w: Writer, type: TensorType) -> Value:
    return w.pick(lambda v: v.type == type and w.bounds[v] <= INPUT_BOUND)


def manual(w: Writer) -> None:
    """A region along one axis that doubles its shards or, where they have no padding, takes their maximum."""
    mesh = w.choices.meshes[0]
    axes = [a for a in mesh.whole_axes() if a.size > 1]
    if not axes:
        return
    axis = w.draw(st.sampled_from(axes))
    x = w.pick(lambda v: v.dtype.is_ordered and v.type.rank > 0 and w.adds(v))
    dim, largest = w.draw(st.integers(0, x.type.rank - 1)), w.draw(st.booleans())
    split = Sharding(mesh, tuple(DimSharding((axis,) if d == dim else (), True) for d in range(x.type.rank)))
    body = RegionBuilder(w.b.names)
    shard = body.param("shard", inner_type(x.type, split, frozenset({axis.name})), split, of=x.type)
    if largest and x.shape[dim] % axis.size == 0:
        new = body.op("all_reduce", shard, axes=(axis,), kind="or" if x.dtype == pred else "max")
        placed, type = Sharding.unknown(mesh, x.type.rank), shard.type
    else:
        new = body.op("or" if x.dtype == pred else "add", shard, shard)
        placed, type = split, x.type
    results = w.b.append(
        "manual", [x], {"axes": (axis,)}, shardings=[placed], regions=(body.region(new),), types=[type]
    )
    w.keep(results[0], 2 * w.bounds[x])


def callback(w: Writer) -> None:
    """A tensor's elements in the opposite order, reversed by the host, with an effect or without."""
    x = w.pick()
    effect = w.draw(st.booleans())
    tokens = [w.b.op("constant", value=0, type=TOKEN)] if effect else []
    function = HostFunction("reversed_elements")
    reversed, *tokens = w.b.multi("callback", x, *tokens, function=function, types=(x.type,), effect=effect)
    tokens = [w.b.op("inspect", reversed, token, function=function) for token in tokens]
    w.b.multi("await_callbacks", reversed, *tokens)
    w.keep(reversed, w.bounds[x])


register_callback("reversed_elements", np.flip)

WRITERS: tuple[Write, ...] = (while_, case, checkpoint, map_, call, call, manual, callback)
