"""Values whose parts XLA may come to see as separate tensors, which it then lays out differently.

XLA's CPU backend cuts the operand of an all_to_all into its parts, simplifies each one (the part of a padded value may
be all padding), and fails if their layouts differ. Behind an optimization barrier they stay parts of one tensor.
"""

from __future__ import annotations

from ir.ops import OPS
from ir.program import Op, Program, Value, all_ops, callee_of

_JOINING = frozenset({"pad", "concatenate", "dynamic_update_slice"})
_KEEPING = frozenset({"elementwise", "layout"})
"""The families of ops that XLA computes part by part if that is simpler."""


def pieced_values(program: Program) -> frozenset[Value]:
    """What is joined from pieces, also before ops by element and in functions called with it."""
    found: set[Value] = set()
    known = -1
    while known < len(found):
        known = len(found)
        for op in all_ops(program):
            found.update(_pieced(program, op, found))
    return frozenset(found)


def _pieced(program: Program, op: Op, found: set[Value]) -> list[Value]:
    name = callee_of(op)
    if name is not None:
        callee = program.functions[name]
        entered = zip(callee.params, op.operands, strict=True)
        returned = zip(op.results, callee.body.results, strict=True)
        return [value for value, same in (*entered, *returned) if same in found]
    if op.name in _JOINING:
        return list(op.results)
    keeps = OPS[op.name].family in _KEEPING and any(v in found for v in op.operands)
    return list(op.results) if keeps else []
