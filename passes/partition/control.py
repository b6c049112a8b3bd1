"""while, case, call and map: regions are partitioned, and values cross their boundaries in one layout."""

from __future__ import annotations

from collections.abc import Sequence

from ir.builder import RegionBuilder
from ir.program import Op, Region, Value
from passes.partition.local import Layout
from passes.partition.partitioner import OpContext, Partitioner, Placed


def call(p: Partitioner, b: RegionBuilder, op: Op) -> None:
    """A function has one layout for each parameter and result; arguments are brought to it, results may be partial."""
    callee = p.program.functions[str(op.attrs["function"])]
    operands = [
        p.place(v, p.wanted(param), op.span, f"argument {param.name} of {callee.name}")
        for v, param in zip(op.operands, callee.params, strict=True)
    ]
    layouts = p.results[callee.name]
    types = [
        r.type.with_shape(layout.local_shape(r.type.shape)) for r, layout in zip(callee.results, layouts, strict=True)
    ]
    names = [v.name for v in op.results]
    results = b.append("call", operands, dict(op.attrs), names=names, span=op.span, note=op.note, types=types)
    for value, layout, local in zip(op.results, layouts, results, strict=True):
        p.put(value, layout, local, b)


def while_(p: Partitioner, b: RegionBuilder, op: Op) -> None:
    """Every carried value keeps one layout, so that nothing is resharded between iterations."""
    condition, body = op.regions
    layouts = [p.wanted(param) for param in body.params]
    operands = [
        p.place(v, layout, op.span, f"initial value of {param.name}")
        for v, layout, param in zip(op.operands, layouts, body.params, strict=True)
    ]
    carried = "carried by the loop"
    regions = (
        _region(p, b, condition, layouts, [Layout(())], "condition of the loop"),
        _region(p, b, body, layouts, layouts, carried),
    )
    names = [v.name for v in op.results]
    results = b.append("while", operands, dict(op.attrs), names=names, span=op.span, note=op.note, regions=regions)
    for value, layout, local in zip(op.results, layouts, results, strict=True):
        p.put(value, layout, local, b)


def case(p: Partitioner, b: RegionBuilder, op: Op) -> None:
    """Every device has the index, so that all take the same branch and may communicate there. All branches give their
    results in one layout."""
    layouts = [p.wanted(v) for v in op.results]
    index = p.place(op.operands[0], Layout(()), op.span, "index of the case")
    regions = tuple(_region(p, b, region, (), layouts, "result of the case") for region in op.regions)
    types = [v.type.with_shape(layout.local_shape(v.shape)) for v, layout in zip(op.results, layouts, strict=True)]
    names = [v.name for v in op.results]
    results = b.append("case", (index,), {}, names=names, span=op.span, note=op.note, regions=regions, types=types)
    for value, layout, local in zip(op.results, layouts, results, strict=True):
        p.put(value, layout, local, b)


def map_(c: OpContext) -> Sequence[Value]:
    """A function of scalars is applied to the shards as it is to the tensors."""
    op = c.op
    types = [c.local_type(i) for i in range(len(op.results))]
    names = [v.name for v in op.results]
    return c.builder.append("map", c.operands, dict(op.attrs), names=names, span=op.span, note=op.note, types=types)


def _region(
    p: Partitioner,
    outer: RegionBuilder,
    region: Region,
    params: Sequence[Layout],
    results: Sequence[Layout],
    why: str,
) -> Region:
    b = RegionBuilder(outer.names)
    for param, layout in zip(region.params, params, strict=True):
        local = b.param(param.name, param.type.with_shape(layout.local_shape(param.shape)), span=param.span)
        p.placed[param] = Placed(param, layout, {layout: local}, b)
    p.ops(b, region.ops)
    returned = [p.place(v, layout, v.span, why) for v, layout in zip(region.results, results, strict=True)]
    return b.region(*returned)
