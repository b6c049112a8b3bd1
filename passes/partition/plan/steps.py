"""The steps of reshards that a plan does not spell: the cheapest ones."""

from __future__ import annotations

from dataclasses import replace

from ir.ops.resharding import is_reshard
from ir.program import Function, Op, Program, Region
from passes.partition.closed_sharding import closed_sharding_of
from passes.partition.plan.spelling import IDENTITY, spell_steps
from passes.partition.reshard.planner import Resharder


def with_steps(program: Program, resharder: Resharder) -> Program:
    """The plan with steps for each reshard between two shardings that has none."""

    def spelled(op: Op) -> Op:
        if op.regions:
            return replace(op, regions=tuple(map(inside, op.regions)))
        source, target = (
            op.operands[0].sharding if op.operands else None,
            op.results[0].sharding if op.results else None,
        )
        if not is_reshard(op) or op.attrs["steps"] or source is None or target is None:
            return op
        value = op.result
        ends = (closed_sharding_of(sharding, resharder.sub_axes) for sharding in (source, target))
        plan = resharder.plan(value.shape, value.dtype.nbytes, *ends)
        steps = spell_steps(program.mesh, plan.steps) if plan.steps else IDENTITY
        return replace(op, attrs={**op.attrs, "steps": steps})

    def inside(region: Region) -> Region:
        return replace(region, ops=tuple(map(spelled, region.ops)))

    functions: dict[str, Function] = {n: replace(f, body=inside(f.body)) for n, f in program.functions.items()}
    return replace(program, functions=functions)
