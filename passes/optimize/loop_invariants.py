"""Collectives that send the same in every turn of a loop, made once, in front of it.

XLA takes out of its loops what does not change; so what a loop is reported to send is what it sends. What such a
collective needs goes with it. What changes from turn to turn, and what runs in some turns alone, stays.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ir.ops.collective import COLLECTIVES
from ir.program import Function, Op, Program, Region, Value, walk


def hoist_collectives(program: Program) -> Program:
    """The SPMD program in which loops send nothing twice that is the same."""
    functions = {name: _function(f) for name, f in program.functions.items()}
    return replace(program, functions=functions)


def _function(function: Function) -> Function:
    loops = (op for op in walk(function.body) if op.name == "while")
    if not any(inner.name in COLLECTIVES for loop in loops for region in loop.regions for inner in region.ops):
        return function
    return replace(function, body=_region(function.body))


def _region(region: Region) -> Region:
    ops: list[Op] = []
    for op in region.ops:
        op = replace(op, regions=tuple([_region(r) for r in op.regions])) if op.regions else op
        if op.name == "while":
            condition, body = op.regions
            tests, condition = _taken_out(condition)
            steps, body = _taken_out(body) if op.attrs.get("trip_count") != 0 else ([], body)
            ops += [*tests, *steps]
            op = replace(op, regions=(condition, body)) if tests or steps else op
        ops.append(op)
    return Region(region.params, tuple(ops), region.results)


def _taken_out(region: Region) -> tuple[list[Op], Region]:
    """The ops that go in front of the loop, and what stays."""
    moved = _invariant_collectives(region)
    if not moved:
        return [], region
    kept = tuple([op for op in region.ops if op not in moved])
    return [op for op in region.ops if op in moved], Region(region.params, kept, region.results)


def _invariant_collectives(region: Region) -> Collection[Op]:
    """The collectives that depend on nothing that changes, and what they are computed from in the region."""
    changing: set[Value] = set(region.params)
    invariant: dict[Value, Op] = {}
    needed: set[Op] = set()
    for op in region.ops:
        if op.regions or not op.results or not changing.isdisjoint(op.operands):
            changing.update(op.results)
            continue
        invariant.update(dict.fromkeys(op.results, op))
        if op.name in COLLECTIVES:
            needed.add(op)
    pending = list(needed)
    while pending:
        makers = {invariant[v] for v in pending.pop().operands if v in invariant}
        pending.extend(makers - needed)
        needed |= makers
    return needed
