"""call, case and barriers: values cross them in one layout. Loops are in `loops`."""

from __future__ import annotations

from ir.builder import RegionBuilder
from ir.causes import Cause
from ir.program import Function, Op
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.plan.planner import Planner, partitions_region


@partitions_region("call")
def call(p: Planner, b: RegionBuilder, op: Op) -> None:
    """Arguments are brought to the layouts that the function computes with, results may be owed reductions."""
    callee = p.program.functions[str(op.attrs["function"])]
    if callee.name in p.inlined:
        _inline(p, b, op, callee)
        return
    given = [p.given(v, param, b) for v, param in zip(op.operands, callee.params, strict=True)]
    ready = [p.placed[v].layouts for v in op.operands]
    version = p.functions.version_for(callee.name, given, ready)
    operands = [p.reshard_to(op.operands[i], layout, op.span, _argument(callee, i)) for i, layout in version.takes]
    outs = tuple(zip(op.results, version.results, strict=True))
    results = p.add(b, "call", operands, outs, {"function": version.function.name}, span=op.span, cause=op.cause)
    for value, layout, local in zip(op.results, version.results, results, strict=True):
        p.record(value, layout, local, b)


def _inline(p: Planner, b: RegionBuilder, op: Op, callee: Function) -> None:
    for i, (param, operand) in enumerate(zip(callee.params, op.operands, strict=True)):
        p.alias(param, operand, op.span, _argument(callee, i))
    p.ops(b, callee.body.ops)
    for value, returned, result in zip(op.results, callee.body.results, callee.results, strict=True):
        p.alias(value, returned, op.span, Cause("result", name=result.name, function=callee.name))


def _argument(callee: Function, i: int) -> Cause:
    return Cause("argument", "call", name=callee.params[i].name, function=callee.name)


@partitions_region("case")
def case(p: Planner, b: RegionBuilder, op: Op) -> None:
    """Every device has the index, so that all take the same branch and may communicate there. All branches give their
    results in one layout; what all of them owe stays owed."""
    index = p.reshard_to(op.operands[0], ClosedSharding(()), op.span, Cause("index", op.name))
    branches = [RegionBuilder(b.names) for _ in op.regions]
    for branch, region in zip(branches, op.regions, strict=True):
        p.ops(branch, region.ops)
    layouts = [p.pending([r.results[i] for r in op.regions], p.wanted(v)) for i, v in enumerate(op.results)]
    regions = tuple(
        branch.region(
            *(
                p.reshard_to(v, layout, v.span, Cause("branch", op.name, name=result.name))
                for v, layout, result in zip(region.results, layouts, op.results, strict=True)
            )
        )
        for branch, region in zip(branches, op.regions, strict=True)
    )
    outs = tuple(zip(op.results, layouts, strict=True))
    results = p.add(b, "case", (index,), outs, op.attrs, span=op.span, cause=op.cause, regions=regions)
    for value, layout, local in zip(op.results, layouts, results, strict=True):
        p.record(value, layout, local, b)


@partitions_region("optimization_barrier")
def barrier(p: Planner, b: RegionBuilder, op: Op) -> None:
    """Each operand passes by itself: where its result is wanted, if it lies there, or else as it was made, whatever
    reduction it owes."""
    layouts: list[ClosedSharding] = []
    for operand, result in zip(op.operands, op.results, strict=True):
        have, wanted = p.placed[operand].layouts, p.wanted(result)
        layouts.append(wanted if wanted in have else next(iter(have)))
    operands = [p.placed[v].layouts[layout] for v, layout in zip(op.operands, layouts, strict=True)]
    outs = tuple(zip(op.results, layouts, strict=True))
    results = p.add(b, op.name, operands, outs, op.attrs, span=op.span, cause=op.cause)
    for value, layout, local in zip(op.results, layouts, results, strict=True):
        p.record(value, layout, local, b)


@partitions_region("await_callbacks")
def await_callbacks(p: Planner, b: RegionBuilder, op: Op) -> None:
    """Each value is there as soon as one of its layouts is."""
    operands = [next(iter(p.placed[v].layouts.values())) for v in op.operands]
    p.add(b, op.name, operands, (), op.attrs, span=op.span, cause=op.cause)
