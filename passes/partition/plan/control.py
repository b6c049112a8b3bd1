"""call, checkpoint and barriers: values cross them in a single sharding. Loops are in `loops`, cases in `branches`."""

from __future__ import annotations

from dataclasses import replace

from ir.builder import RegionBuilder
from ir.causes import Cause
from ir.program import Function, Op
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.plan.functions import version_for
from passes.partition.plan.planner import Planner, partitions_region


@partitions_region("call")
def call(p: Planner, b: RegionBuilder, op: Op) -> None:
    """Brings arguments to the shardings that the function computes with. Results may be partial."""
    callee = p.program.functions[str(op.attrs["function"])]
    if callee.name in p.versions.inlined:
        _inline(p, b, op, callee)
        return
    values = p.values
    given = [values.given(v, param, b) for v, param in zip(op.operands, callee.params, strict=True)]
    ready = [values.partitioned[v].shardings for v in op.operands]
    version = version_for(p, callee.name, given, ready)
    operands = [values.reshard_to(op.operands[i], to, op.span, _argument(callee, i)) for i, to in version.takes]
    outs = tuple(zip(op.results, version.results, strict=True))
    p.add_whole(b, replace(op, attrs={"function": version.function.name}), operands, outs)


def _inline(p: Planner, b: RegionBuilder, op: Op, callee: Function) -> None:
    for i, (param, operand) in enumerate(zip(callee.params, op.operands, strict=True)):
        p.values.alias(param, operand, op.span, _argument(callee, i))
    p.ops(b, callee.body.ops)
    for value, returned, result in zip(op.results, callee.body.results, callee.results, strict=True):
        p.values.alias(value, returned, op.span, Cause("result", name=result.name, function=callee.name))
        if callee.name in p.versions.repeated:
            p.values.forget_maker(value)


def _argument(callee: Function, i: int) -> Cause:
    return Cause("argument", "call", name=callee.params[i].name, function=callee.name)


@partitions_region("checkpoint")
def checkpoint(p: Planner, b: RegionBuilder, op: Op) -> None:
    """Replaces a checkpoint by its ops: in a gradient, those that are to be recomputed are there already."""
    (region,) = op.regions
    p.ops(b, region.ops)
    for value, returned in zip(op.results, region.results, strict=True):
        p.values.alias(value, returned, op.span, Cause("branch", op.name, name=value.name))


@partitions_region("optimization_barrier")
def barrier(p: Planner, b: RegionBuilder, op: Op) -> None:
    """Passes each operand on separately: in the sharding that its result is wanted in, if it exists in that, or else in
    the one that it was made in, with any pending reduction."""
    shardings: list[ClosedSharding] = []
    for operand, result in zip(op.operands, op.results, strict=True):
        have, wanted = p.values.partitioned[operand].shardings, p.values.wanted(result)
        shardings.append(wanted if wanted in have else next(iter(have)))
    operands = [p.values.partitioned[v].shardings[sharding] for v, sharding in zip(op.operands, shardings, strict=True)]
    p.add_whole(b, op, operands, tuple(zip(op.results, shardings, strict=True)))


@partitions_region("await_callbacks")
def await_callbacks(p: Planner, b: RegionBuilder, op: Op) -> None:
    """A value is awaited in any one of its shardings."""
    operands = [next(iter(p.values.partitioned[v].shardings.values())) for v in op.operands]
    p.add_whole(b, op, operands, ())
