"""The functions of a plan as far as they are made: a version for each way in which calls pass the arguments."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ir.builder import Names
from ir.diagnostics import Diagnostic
from ir.ops.control import is_call, is_map
from ir.program import Function, Program, all_ops, callee_of, callees_first, walk
from passes.partition.closed_sharding import ClosedSharding

_SMALL = 10
"""Functions of so few ops are planned where they are called."""


@dataclass(frozen=True, slots=True)
class Given:
    """How a call has an argument: its sharding, and whether a reshard of it would be in front of a loop
    around the call."""

    sharding: ClosedSharding
    outside: bool


@dataclass(frozen=True, eq=False, slots=True)
class Version:
    """A function of the plan. `takes` are the arguments it is called with, by number, and their shardings; one
    may come in several, and one that nothing needs does not come."""

    function: Function
    takes: tuple[tuple[int, ClosedSharding], ...]
    results: tuple[ClosedSharding, ...]
    warnings: tuple[Diagnostic, ...]


class Versions:
    """Those of one program. `inlined` functions are planned where they are called, `mapped` ones in one way only;
    `seconds` is what one call of each version takes."""

    def __init__(self, program: Program) -> None:
        self.mapped = {name for op in all_ops(program) if is_map(op) and (name := callee_of(op)) is not None}
        self.inlined = inlined_functions(program, self.mapped)
        self.names = Names(set(program.functions))
        self.planned: dict[tuple[str, tuple[Given, ...]], Version] = {}
        self.seconds: dict[str, float] = {}


def inlined_functions(program: Program, mapped: set[str]) -> frozenset[str]:
    """Functions that are planned where they are called: small ones, and those with one call only."""
    calls = Counter(callee_of(op) for op in all_ops(program) if is_call(op))
    inlined: set[str] = set()
    sizes: dict[str | None, int] = {}
    for function in callees_first(program):
        name = function.name
        callees = [callee_of(op) for op in walk(function.body)]
        sizes[name] = sum(sizes[c] if c in inlined else 1 for c in callees)
        is_kept = name == program.entry or name in mapped
        if not is_kept and (calls[name] == 1 or (calls[name] and sizes[name] <= _SMALL)):
            inlined.add(name)
    return frozenset(inlined)
