"""What is the same in every iteration of a loop, made once, in front of it: collectives, and data that is only moved.

XLA takes out of its loops what does not change; so what a loop is reported to send is what it sends. What a collective
needs goes with it. What changes from iteration to iteration, and what runs in some iterations alone, stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ir.closure import reached
from ir.ops import OPS
from ir.ops.control import is_loop
from ir.ops.layout import is_annotation
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
    return _hoisted(function, lambda region: _invariant(region, sending))


def hoist_moves(function: Function) -> Function:
    """The function with data that is only moved, and does not change from iteration to iteration, moved in front of its
    loops. Before partitioning, it lets a part of the weights that every iteration uses be resharded once for all of
    them, as whole weights are."""
    return _hoisted(function, _moves)


def _hoisted(function: Function, of: Callable[[Region], Collection[Op]]) -> Function:
    """The function with what is chosen `of` the regions of a loop in front of it."""

    def apart(op: Op) -> Sequence[Op]:
        if not is_loop(op):
            return (op,)
        condition, body = op.regions
        chosen = {*of(condition), *(of(body) if op.attrs.get("trip_count") != 0 else ())}
        moved = [each for region in op.regions for each in region.ops if each in chosen]
        kept = [tuple([each for each in region.ops if each not in chosen]) for region in op.regions]
        regions = tuple(with_parts(region, ops=ops) for region, ops in zip(op.regions, kept, strict=True))
        return (*moved, with_parts(op, regions=regions))

    return with_parts(function, body=map_ops(function.body, apart))


def _moves(region: Region) -> Collection[Op]:
    """The ops of a region that only move what does not change."""
    changing: set[Value] = set(region.params)
    found: set[Op] = set()
    for op in region.ops:
        if _only_moves(op) and op.operands[0] not in changing:
            found.add(op)
        else:
            changing.update(op.results)
    return found


def _only_moves(op: Op) -> bool:
    """Whether the op only moves data, and its result is no larger: to keep it takes no more memory."""
    opdef = OPS[op.name]
    if opdef.family != "layout" or is_annotation(op) or len(op.operands) != 1:
        return False
    return opdef.sources(op) == (0,) and op.result.type.nbytes <= op.operands[0].type.nbytes


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
    return set(reached(needed, lambda op: [makers[v] for v in (*op.operands, *used_inside(op)) if v in makers]))
