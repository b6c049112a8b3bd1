"""call, case, map and barriers: values cross them in one layout. Loops are in `loops`."""

from __future__ import annotations

from collections.abc import Sequence

from ir.builder import RegionBuilder
from ir.program import Attr, Function, Op, Value
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.context import OpContext
from passes.partition.registry import partitions
from passes.partition.write.writer import Partitioner, partitions_region


@partitions_region("call")
def call(p: Partitioner, b: RegionBuilder, op: Op) -> None:
    """Arguments are brought to the layouts that the function computes with, results may be owed reductions."""
    callee = p.program.functions[str(op.attrs["function"])]
    if callee.name in p.inlined:
        _inline(p, b, op, callee)
        return
    given = [p.given(v, param, b) for v, param in zip(op.operands, callee.params, strict=True)]
    ready = [p.placed[v].layouts for v in op.operands]
    version = p.functions.version_for(callee.name, given, ready)
    operands = [
        p.reshard_to(op.operands[i], layout, op.span, f"argument {callee.params[i].name} of {callee.name}")
        for i, layout in version.takes
    ]
    types = [
        r.type.with_shape(layout.local_shape(r.type.shape))
        for r, layout in zip(callee.results, version.results, strict=True)
    ]
    names = [v.name for v in op.results]
    attrs: dict[str, Attr] = {"function": version.function.name}
    results = b.append("call", operands, attrs, names=names, span=op.span, note=op.note, types=types)
    for value, layout, local in zip(op.results, version.results, results, strict=True):
        p.put(value, layout, local, b)


def _inline(p: Partitioner, b: RegionBuilder, op: Op, callee: Function) -> None:
    for param, operand in zip(callee.params, op.operands, strict=True):
        p.alias(param, operand, op.span, f"argument {param.name} of {callee.name}")
    p.ops(b, callee.body.ops)
    for value, returned, result in zip(op.results, callee.body.results, callee.results, strict=True):
        p.alias(value, returned, op.span, f"result {result.name} of {callee.name}")


@partitions_region("case")
def case(p: Partitioner, b: RegionBuilder, op: Op) -> None:
    """Every device has the index, so that all take the same branch and may communicate there. All branches give their
    results in one layout; what all of them owe stays owed."""
    index = p.reshard_to(op.operands[0], ClosedSharding(()), op.span, "index of the case")
    branches = [RegionBuilder(b.names) for _ in op.regions]
    for branch, region in zip(branches, op.regions, strict=True):
        p.ops(branch, region.ops)
    layouts = [p.owed([r.results[i] for r in op.regions], p.wanted(v)) for i, v in enumerate(op.results)]
    regions = tuple(
        branch.region(
            *(
                p.reshard_to(v, layout, v.span, "result of the case")
                for v, layout in zip(region.results, layouts, strict=True)
            )
        )
        for branch, region in zip(branches, op.regions, strict=True)
    )
    types = [v.type.with_shape(layout.local_shape(v.shape)) for v, layout in zip(op.results, layouts, strict=True)]
    names = [v.name for v in op.results]
    results = b.append("case", (index,), {}, names=names, span=op.span, note=op.note, regions=regions, types=types)
    for value, layout, local in zip(op.results, layouts, results, strict=True):
        p.put(value, layout, local, b)


@partitions_region("optimization_barrier")
def barrier(p: Partitioner, b: RegionBuilder, op: Op) -> None:
    """Each operand passes by itself: where its result is wanted, if it lies there, or else as it was made, whatever
    reduction it owes."""
    layouts: list[ClosedSharding] = []
    for operand, result in zip(op.operands, op.results, strict=True):
        have, wanted = p.placed[operand].layouts, p.wanted(result)
        layouts.append(wanted if wanted in have else next(iter(have)))
    operands = [p.placed[v].layouts[layout] for v, layout in zip(op.operands, layouts, strict=True)]
    names = [v.name for v in op.results]
    results = b.append(op.name, operands, {}, names=names, span=op.span, note=op.note)
    for value, layout, local in zip(op.results, layouts, results, strict=True):
        p.put(value, layout, local, b)


@partitions("map")
def map_(c: OpContext) -> Sequence[Value]:
    """A function of scalars is applied to the shards as it is to the tensors."""
    op = c.op
    types = [c.local_type(i) for i in range(len(op.results))]
    names = [v.name for v in op.results]
    return c.builder.append("map", c.operands, dict(op.attrs), names=names, span=op.span, note=op.note, types=types)
