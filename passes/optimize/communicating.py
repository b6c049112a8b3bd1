"""Which ops communicate: by themselves, in their regions, or in the functions that they call."""

from __future__ import annotations

from collections.abc import Collection

from ir.ops.collective import COLLECTIVES
from ir.program import Op, Program, callee_of, callees_first

Communicating = Collection[str | None]
"""The names of the functions that communicate."""


def communicating_functions(program: Program) -> Communicating:
    """The functions of an SPMD program that communicate, directly or in their callees."""
    found: set[str | None] = set()
    for function in callees_first(program):
        if any(communicates(op, found) for op in function.body.ops):
            found.add(function.name)
    return found


def communicates(op: Op, functions: Communicating) -> bool:
    """Whether an op communicates, in a program whose communicating functions are `functions`."""
    if op.name in COLLECTIVES or callee_of(op) in functions:
        return True
    return any(communicates(inner, functions) for region in op.regions for inner in region.ops)
