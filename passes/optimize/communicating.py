"""Which ops communicate: by themselves, in their regions, or in the functions that they call."""

from __future__ import annotations

from collections.abc import Collection

from ir.ops.collective import COLLECTIVES
from ir.program import Op, Program, callee_of, functions_with, walk

Communicating = Collection[str]
"""The names of the functions that communicate."""


def communicating_functions(program: Program) -> Communicating:
    """The functions of an SPMD program that communicate, directly or in their callees."""
    return functions_with(program, _sends)


def communicates(op: Op, functions: Communicating) -> bool:
    """Whether an op communicates, in a program whose communicating functions are `functions`."""
    return _sends(op, functions) or any(_sends(inner, functions) for region in op.regions for inner in walk(region))


def _sends(op: Op, functions: Communicating) -> bool:
    """Whether an op communicates, apart from those in its regions."""
    return op.name in COLLECTIVES or callee_of(op) in functions
