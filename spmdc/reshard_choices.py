"""What a reshard of a plan moves, why, and what it would take from the other shardings in which the value exists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from ir.causes import Cause
from ir.ops.control import is_loop
from ir.ops.resharding import is_reshard
from ir.program import Op, Program, Value, all_ops, all_regions, walk
from passes.partition.closed_sharding import ClosedSharding, PlanShardings
from passes.partition.options import PartitionOptions
from passes.partition.reshard.planner import Resharder
from passes.partition.reshard.steps import AnySharding, Steps, Task
from passes.partition.reshard.strided import Retile
from passes.partition.spelling import IDENTITY, read_steps, spell_steps
from passes.sub_axes import find_sub_axes
from spmdc.choices import Choice, Choices


def reshard_choices(program: Program, op: Op, options: PartitionOptions, total: float) -> Choices:
    """The steps of a reshard of a plan that takes `total` seconds, and those from other shardings; cheapest first."""
    sub_axes, mesh = find_sub_axes(program), program.mesh
    shardings, options = PlanShardings(program, sub_axes), options.for_meshes(program.meshes)
    is_repeated = any(op in walk(region) for loop in filter(is_loop, all_ops(program)) for region in loop.regions)
    priced = options.for_loops() if is_repeated else options.for_choices()
    resharder = Resharder(sub_axes, priced.machine, Resharder(sub_axes, options.machine))
    before = {source: shardings.of(source) for source in _before(program, op)}
    (operand,), target = op.operands, shardings.of(op.result)
    source = before[operand]
    own, size = str(op.attrs["steps"]), (op.result.shape, op.result.dtype.nbytes)

    def choice(at: ClosedSharding, text: str, seconds: float, *, is_chosen: bool) -> Choice:
        shardings = (at.spell(mesh),), (target.spell(mesh),)
        return Choice(text, *shardings, seconds, seconds, total if is_chosen else None, 0, is_chosen)

    found: list[Choice] = []
    for at in dict.fromkeys(before.values()) if own != IDENTITY else ():
        steps = resharder.plan(*size, at, target)
        text = spell_steps(mesh, steps.steps)
        found.append(choice(at, text, steps.seconds, is_chosen=at == source and text == own))
    if not any(each.is_chosen for each in found):
        edited = read_steps(program.meshes, own, op.result.span) if own != IDENTITY else ()
        seconds = _seconds(Task(resharder.machine, sub_axes, *size, source, target), edited)
        found.append(choice(source, own, seconds, is_chosen=True))
    found.sort(key=lambda each: each.seconds)
    cause = replace(
        op.cause or Cause("written"), values=(operand.name,), source=source.spell(mesh), target=target.spell(mesh)
    )
    return Choices(op.result.name, op.name, (), tuple(found), (), cause=cause)


def _seconds(task: Task, steps: Steps) -> float:
    """The time of steps that a user may have written."""
    seconds, at = 0.0, cast(AnySharding, task.source)
    for step, after in steps:
        have, want = (math.ceil(task.itemsize * math.prod(each.local_shape(task.shape))) for each in (at, after))
        cost = step.cost(task, at, after) if isinstance(step, Retile) else step.cost_of(task.machine, have, want)
        seconds, at = seconds + cost[0], after
    return seconds


def _before(program: Program, op: Op) -> Sequence[Value]:
    """The forms that the plan has of what the op reshards, before it: itself, and what else is resharded of the
    same."""
    made_of: dict[Value, Value] = {}
    for region in (region for region in all_regions(program) if op in walk(region)):
        for other in region.ops:
            if other is op or any(op in walk(inside) for inside in other.regions):
                break
            if is_reshard(other):
                made_of[other.result] = made_of.get(other.operands[0], other.operands[0])
    (operand,) = op.operands
    first = made_of.get(operand, operand)
    return [first, *(value for value, of in made_of.items() if of is first)]
