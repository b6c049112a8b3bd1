"""What loops take of values from outside, taken once and in front of them.

XLA does the same, later. Before partitioning, it lets a part of the weights that every turn uses be resharded once for
all turns, as whole weights are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ir.ops import OPS
from ir.ops.control import is_loop
from ir.ops.layout import is_annotation
from ir.program import Function, Op, Region, Value
from passes.rewrite import map_ops


def hoist(function: Function) -> Function:
    """The function with data that is only moved, and does not change from iteration to iteration, moved in front of its
    loops."""
    return replace(function, body=map_ops(function.body, _hoisted))


def _hoisted(op: Op) -> Sequence[Op]:
    if not is_loop(op):
        return (op,)
    condition, body = op.regions
    moved, body = _taken_out(body)
    return (*moved, replace(op, regions=(condition, body)))


def _taken_out(body: Region) -> tuple[list[Op], Region]:
    """The ops that go in front of the loop, and what stays."""
    inside: set[Value] = set(body.params)
    moved: list[Op] = []
    kept: list[Op] = []
    for op in body.ops:
        if _only_moves(op) and op.operands[0] not in inside:
            moved.append(op)
        else:
            kept.append(op)
            inside.update(op.results)
    return moved, Region(body.params, tuple(kept), body.results)


def _only_moves(op: Op) -> bool:
    """Whether the op only moves data, and its result is no larger: to keep it takes no more memory."""
    opdef = OPS[op.name]
    if opdef.family != "layout" or is_annotation(op) or len(op.operands) != 1:
        return False
    return opdef.sources(op) == (0,) and op.result.type.nbytes <= op.operands[0].type.nbytes
