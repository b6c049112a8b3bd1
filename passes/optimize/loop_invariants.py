"""Collectives that send the same in every iteration of a loop, made once, in front of it.

XLA takes out of its loops what does not change; so what a loop is reported to send is what it sends. What such a
collective needs goes with it. What changes from iteration to iteration, and what runs in some iterations alone, stays.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ir.ops.control import is_loop
from ir.program import Function, Op, Program, Region, Value, used_inside, walk
from passes.optimize.communicating import Communicating, communicates, communicating_functions
from passes.rewrite import map_ops, with_parts


def hoist_collectives(program: Program) -> Program:
    """The SPMD program in which loops send nothing twice that is the same."""
    sending = communicating_functions(program)
    return with_parts(program, functions={name: _function(f, sending) for name, f in program.functions.items()})


def _function(function: Function, sending: Communicating) -> Function:
    if not any(communicates(op, sending) for op in walk(function.body) if is_loop(op)):
        return function
    return with_parts(function, body=map_ops(function.body, lambda op: _hoisted(op, sending)))


def _hoisted(op: Op, sending: Communicating) -> Sequence[Op]:
    if not is_loop(op):
        return (op,)
    condition, body = op.regions
    tests, condition = _taken_out(condition, sending)
    steps, body = _taken_out(body, sending) if op.attrs.get("trip_count") != 0 else ([], body)
    return (*tests, *steps, with_parts(op, regions=(condition, body)))


def _taken_out(region: Region, sending: Communicating) -> tuple[list[Op], Region]:
    """The ops that go in front of the loop, and what stays."""
    moved = _invariant(region, sending)
    if not moved:
        return [], region
    kept = tuple([op for op in region.ops if op not in moved])
    return [op for op in region.ops if op in moved], Region(region.params, kept, region.results)


def _invariant(region: Region, sending: Communicating) -> Collection[Op]:
    """The ops that send and depend on nothing that changes, and what they are computed from in the region."""
    changing: set[Value] = set(region.params)
    makers: dict[Value, Op] = {}
    needed: set[Op] = set()
    for op in region.ops:
        if not op.results or not changing.isdisjoint((*op.operands, *used_inside(op))):
            changing.update(op.results)
            continue
        makers.update(dict.fromkeys(op.results, op))
        if communicates(op, sending):
            needed.add(op)
    pending = list(needed)
    while pending:
        op = pending.pop()
        used = {makers[v] for v in (*op.operands, *used_inside(op)) if v in makers}
        pending.extend(used - needed)
        needed |= used
    return needed
