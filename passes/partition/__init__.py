"""The SPMD partitioner: from a propagated program to the program of one device.

`plan` decides how each op is split and where values are resharded, and writes nothing; `write` writes a plan, and
decides nothing; a plan says what it does as text, in `spelling`. `reshard` brings a value from one sharding to another,
and `exchange` brings boxes of elements to the devices that need them. An op whose local form is not the op itself has a
function in the file of its family, in `ops`; ops that others stand for, as they are planned, are in `rewrites`.
"""

from __future__ import annotations

from ir.diagnostics import SpmdcError
from ir.program import Program, all_ops
from passes.partition import ops, rewrites
from passes.partition.options import PartitionOptions
from passes.partition.plan import branches, control, loops, manual_regions
from passes.partition.plan.checks import plan_diagnostics
from passes.partition.plan.decisions import Decide
from passes.partition.plan.functions import plan_program
from passes.partition.plan.plan import Plan, are_alike, with_steps
from passes.partition.plan.planner import Planner
from passes.partition.reshard.planner import Resharder
from passes.partition.write.cost import bytes_received
from passes.partition.write.writer import write_plan
from passes.propagation.reasons import Propagated
from passes.sub_axes import find_sub_axes

__all__ = [
    "Decide",
    "Plan",
    "branches",
    "control",
    "loops",
    "make_plan",
    "manual_regions",
    "ops",
    "read_plan",
    "rewrites",
    "write_plan",
]

_MOST_OPS_PLANNED_TWICE = 2000
"""Larger programs are planned once only, because planning them takes seconds."""


def make_plan(propagated: Propagated, options: PartitionOptions, decide: Decide | None = None) -> Plan:
    """The plan for a propagated program, with warnings of operands that are gathered for lack of a better way, and of
    lack of memory. `decide` may override the cost model for some ops.

    The cost model may send more bytes to save messages. So a program whose loops communicate, unless it is large, is
    planned a second time for few bytes, and a third time with all loops split if the first plan computes some whole;
    the plan by which devices receive least is returned. On a network, whose message latencies are known, times decide.
    Loops of programs that are planned only once stay split.
    """
    options = options.for_meshes(propagated.program.meshes)
    resharder = Resharder(find_sub_axes(propagated.program), options.machine)
    once = bool(options.machine.network) or sum(1 for _ in all_ops(propagated.program)) > _MOST_OPS_PLANNED_TWICE
    first = Planner(propagated, resharder, options, decide=decide, keeps_split=once)
    plan = plan_program(first)
    if once or not first.loops.are_sending:
        return plan
    least = bytes_received(plan)
    if not least:
        return plan

    def again(*, saves_bytes: bool) -> Plan:
        planner = Planner(
            propagated, resharder, options, decide=decide, saves_bytes=saves_bytes, keeps_split=True, before=first
        )
        return plan_program(planner)

    saving = again(saves_bytes=True)
    saved = least if are_alike(saving, plan) else bytes_received(saving)
    if saved < least:
        plan, least = saving, saved
    if not first.loops.whole:
        return plan
    split = again(saves_bytes=False)
    received = saved if are_alike(split, saving) else bytes_received(split)
    return split if received <= least else plan


def read_plan(program: Program, options: PartitionOptions) -> Plan:
    """The plan that a program of stage "plan" contains. Reshards without steps get the cheapest ones. Raises SpmdcError
    with all inconsistencies (E309, E413)."""
    sub_axes = find_sub_axes(program)
    program = with_steps(program, Resharder(sub_axes, options.for_meshes(program.meshes).machine))
    found = plan_diagnostics(program, sub_axes)
    if found:
        raise SpmdcError(found)
    return Plan(program, sub_axes)
