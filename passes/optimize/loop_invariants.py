"""Hoists loop-invariant collectives and data movement out of loops.

XLA hoists what does not change, so the program is reported to send what it really sends. The ops that a collective
depends on are hoisted with it. What changes from iteration to iteration, or runs in some iterations only, stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ir.closure import reached
from ir.ops import OPS
from ir.ops.control import is_loop
from ir.ops.declaration import InKernels
from ir.ops.layout import is_annotation
from ir.program import Function, Op, Program, Region, Value, used_inside, walk
from passes.optimize.communicating import Communicating, communicates, communicating_functions
from passes.rewrite import map_ops, with_parts


def hoist_collectives(program: Program) -> Program:
    """The SPMD program in which loops communicate nothing that is the same in every iteration."""
    sending, functions = communicating_functions(program), dict[str, Function]()
    for name, f in program.functions.items():
        is_sending = any(communicates(op, sending) for op in walk(f.body) if is_loop(op))
        functions[name] = _hoisted(f, lambda region: _invariant(region, sending)) if is_sending else f
    return with_parts(program, functions=functions)


def hoist_moves(function: Function) -> Function:
    """The function with loop-invariant data movement hoisted in front of its loops. Before partitioning, this lets a
    part of the weights that every iteration uses be resharded once for all iterations, as whole weights are."""
    return _hoisted(function, _moves)


def _hoisted(function: Function, of: Callable[[Region], Collection[Op]]) -> Function:
    """The function with the ops that `of` selects from a loop's region hoisted in front of the loop."""

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
    """The ops of a region that only move loop-invariant data. Transposes of factors stay, because a product reads its
    factors in any order: in front of the loop, they would be copies."""
    changing: set[Value] = set(region.params)
    others = (op for op in walk(region) if OPS[op.name].role is not InKernels.PRODUCT)
    read = {v for op in others for v in op.operands}.union(region.results)
    found: set[Op] = set()
    for op in region.ops:
        is_factor = op.name == "transpose" and op.result not in read
        if _only_moves(op) and op.operands[0] not in changing and not is_factor:
            found.add(op)
        else:
            changing.update(op.results)
    return found


def _only_moves(op: Op) -> bool:
    """Whether the op only moves data, and its result is no larger than its operand, so that keeping it takes no more
    memory."""
    opdef = OPS[op.name]
    if opdef.family != "layout" or is_annotation(op) or len(op.operands) != 1:
        return False
    return opdef.sources(op) == (0,) and op.result.type.nbytes <= op.operands[0].type.nbytes


def _invariant(region: Region, sending: Communicating) -> Collection[Op]:
    """The ops that communicate and are loop-invariant, and the ops in the region that they depend on."""
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
