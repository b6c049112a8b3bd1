"""The steps of reshards that a plan does not spell: the cheapest ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ir.ops.resharding import is_reshard
from ir.program import Op, Program
from passes.partition.closed_sharding import closed_sharding_of
from passes.partition.plan.spelling import IDENTITY, spell_steps
from passes.partition.reshard.planner import Resharder
from passes.rewrite import map_ops


def with_steps(program: Program, resharder: Resharder) -> Program:
    """The plan with steps for each reshard between two shardings that has none."""

    def spelled(op: Op) -> Iterator[Op]:
        if not is_reshard(op) or op.attrs["steps"]:
            yield op
            return
        value, source, target = op.result, op.operands[0].sharding, op.result.sharding
        if source is None or target is None:
            yield op
            return
        ends = (closed_sharding_of(sharding, resharder.sub_axes) for sharding in (source, target))
        plan = resharder.plan(value.shape, value.dtype.nbytes, *ends)
        steps = spell_steps(program.mesh, plan.steps) if plan.steps else IDENTITY
        yield replace(op, attrs={**op.attrs, "steps": steps})

    functions = {n: replace(f, body=map_ops(f.body, spelled)) for n, f in program.functions.items()}
    return replace(program, functions=functions)
